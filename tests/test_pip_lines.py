"""What to type for a package that is missing."""

from importlib import metadata

from memcalc.version import pip_line


def test_a_missing_package_is_named_as_pip_knows_it():
    assert pip_line(["cv2", "PIL"]) == "pip install opencv-python-headless pillow"
    assert pip_line(["einops"], "/venv/bin/python") == "/venv/bin/python -m pip install einops"


def test_torchvision_does_not_change_the_torch_that_is_installed():
    release = metadata.version("torch").partition("+")[0]
    assert pip_line(["torchvision"]) == f"pip install torchvision torch=={release}"
