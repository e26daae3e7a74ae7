"""A notebook in a real kernel: tables look right, figures are pictures, the API shows itself."""

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.nightly

CELLS = (
    "import memcalc",
    "found = memcalc.estimate({model!r}, batch=2, seq=32, gpu='t4')\nfound",
    "found.plot()",
    "memcalc.explain({model!r}, batch=2, seq=32, gpu='t4')",
    "sorted(name for name in dir(memcalc) if not name.startswith('_'))",
    "shell = get_ipython()\nshell.Completer.use_jedi = False\nshell.complete('memcalc.est')[1]",
)


@pytest.fixture(scope="module")
def run(small_model, tmp_path_factory):
    """All cells, after they ran."""
    cells = [nbformat.v4.new_code_cell(cell.format(model=small_model)) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    assert list(folder.iterdir()) == []
    return [cell.outputs for cell in cells]


def data_of(outputs, kind):
    return [one["data"][kind] for one in outputs if kind in one.get("data", {})]


def test_an_answer_is_a_table_and_text_for_those_who_show_none(run):
    (page,) = data_of(run[1], "text/html")
    assert "<table" in page
    assert "fits" in page
    assert data_of(run[1], "text/plain")
    assert "<table" in data_of(run[3], "text/html")[0]


def test_a_figure_is_a_picture(run):
    assert data_of(run[2], "image/png")


def test_nothing_is_printed_beside_an_answer(run):
    for outputs in run[:5]:
        streams = [one for one in outputs if one["output_type"] == "stream"]
        assert [one["text"] for one in streams if one["name"] == "stdout"] == []
        assert all("Traceback" not in one["text"] for one in streams)


def test_the_api_shows_itself(run):
    (names,) = data_of(run[4], "text/plain")
    for name in ("estimate", "explain", "fit", "simulate", "suggest"):
        assert repr(name) in names
    (offered,) = data_of(run[5], "text/plain")
    assert "estimate" in offered
