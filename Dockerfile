# memcalc with PyTorch's CUDA build and without NVIDIA's libraries: exact estimates need no GPU.
#   docker build -t memcalc .
#   docker run --rm -v "$PWD:/work" memcalc estimate gpt2 --gpu t4
# It builds on x86-64 and on aarch64, so also in Docker on Apple silicon.
FROM python:3.12-slim

# The stub driver is compiled where the wheel does not bring it; torch.compile needs a compiler too.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# PyTorch has a layer of its own: half a gigabyte that a change of memcalc does not fetch again.
WORKDIR /src
COPY constraints.txt .
RUN pip install --no-cache-dir uv \
    && uv pip install --system --no-cache --no-deps -c constraints.txt torch

# Its dependencies on NVIDIA's libraries and on Triton are left out, whatever this release calls
# them: the stub driver stands in their place, and 2.5 GB are not fetched.
COPY . .
RUN python -c "import importlib.metadata as m, re; \
print(*{re.match(r'[\w.-]+', need)[0] for need in m.requires('torch') \
if re.match('nvidia|cuda|triton', need)}, sep='\n')" > /tmp/left-out.txt \
    && uv pip install --system --no-cache -c constraints.txt --excludes /tmp/left-out.txt . \
    && rm /tmp/left-out.txt

# Any user may run it, as with docker run --user "$(id -u)".
ENV MEMCALC_CACHE=/var/cache/memcalc
RUN mkdir -m 1777 "$MEMCALC_CACHE"
WORKDIR /work
ENTRYPOINT ["memcalc"]
CMD ["--help"]
