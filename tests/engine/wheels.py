"""Tiny wheels, and folders that look like the site-packages of a Python."""

import base64
import hashlib
import http.server
import json
import pathlib
import threading
import zipfile

from packaging.tags import sys_tags

HERE = str(next(sys_tags()))
"""Only this Python installs a wheel of it."""
PLAIN = "py3-none-any"
LARGE = bytes(1 << 20)
SERVED = "application/vnd.pypi.simple.v1+json"


def files(name, version, *, requires=(), modules=None):
    """What a distribution holds: its modules and its metadata."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    found = dict(modules or {f"{name.replace('-', '_')}/__init__.py": b""})
    found[f"{info}/METADATA"] = ("\n".join(lines) + "\n\n").encode()
    return info, found


def torch_modules(version, cuda, *, more=b""):
    text = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"
    start = b"from torch.version import __version__\n"
    found = {
        "torch/__init__.py": start + more,
        "torch/version.py": f"from typing import Optional\n{text}".encode(),
        "torch/lib/libtorch_cpu.so": LARGE,
    }
    return {**found, "torch/lib/libtorch_cuda.so": LARGE} if cuda else found


def wheel(folder, name, version, *, requires=(), modules=None, tag=PLAIN):
    """A wheel in a folder."""
    info, found = files(name, version, requires=requires, modules=modules)
    found[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(f"{path},{_digest(data)},{len(data)}\n" for path, data in found.items())
    found[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in found.items():
            archive.writestr(file, data)
    return path


def cuda_wheel(folder, release, cuda="12.4", **more):
    """PyTorch's CUDA build, as PyPI has it: the version in the file's name has no local part."""
    local = f"{release}+cu{cuda.replace('.', '')}"
    return wheel(folder, "torch", release, modules=torch_modules(local, cuda), tag=HERE, **more)


def cpu_wheel(folder, release, local=""):
    modules = torch_modules(f"{release}+cpu", None)
    return wheel(folder, "torch", f"{release}{local}", modules=modules, tag=HERE)


def install(site, name, version, *, requires=(), modules=None):
    """A distribution in a site folder, with no installer."""
    info, found = files(name, version, requires=requires, modules=modules)
    found[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in found).encode()
    for path, data in found.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)


def _digest(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


class Index:
    """A package index on this machine that answers in JSON."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        handler = type("Handler", (_Handler,), {"index": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def page(self, package):
        found = [
            {
                "filename": path.name,
                "url": f"/files/{path.name}",
                "hashes": {},
                "size": path.stat().st_size,
            }
            for path in sorted(self.folder.glob(f"{package.replace('-', '_')}-*.whl"))
        ]
        return {"meta": {"api-version": "1.1"}, "name": package, "files": found}


class _Handler(http.server.BaseHTTPRequestHandler):
    index: Index

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = self.path.strip("/").split("/")
        if parts[0] == "simple":
            page = self.index.page(parts[1])
            self._answer(json.dumps(page).encode(), SERVED, 200 if page["files"] else 404)
        else:
            self._answer((self.index.folder / parts[1]).read_bytes(), "application/zip", 200)

    def _answer(self, data, kind, code):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass
