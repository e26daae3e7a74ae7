"""What a command says while something is fetched."""

import threading

from memcalc.cli.progress import progress
from memcalc.records.progress import Progress, tell


def test_in_a_log_the_size_of_what_is_fetched_is_one_line_before_it_comes(capsys):
    def fetch():
        tell(Progress("PyTorch 2.6.0 with CUDA: 767 MB to fetch, once"))
        tell(Progress("PyTorch 2.6.0: fetching (102 MB)", 0.1))
        tell(Progress("", 1.0))

    with progress("estimating gpt2"):
        # Questions are asked by threads too.
        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()
    tell(Progress("nobody listens"))
    captured = capsys.readouterr()
    assert captured.err == "memcalc: PyTorch 2.6.0 with CUDA: 767 MB to fetch, once\n"
    assert captured.out == ""
