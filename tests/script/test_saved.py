"""What other verbs make of a saved result."""

import json

SCRIPT = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_saved_result_is_shown_explained_and_drawn_without_a_run(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    typed = ("--gpu", "t4", "-o", "saved.json", "--", "python", "train.py")
    assert memcalc("simulate", *typed).returncode == 0
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    saved = json.loads((tmp_path / "saved.json").read_text())
    shown = memcalc("show", "saved.json")
    assert shown.returncode == 0
    assert "fits on T4" in shown.stdout
    explained = memcalc("explain", "saved.json", "--format", "json")
    assert explained.returncode == 0, explained.stderr
    assert json.loads(explained.stdout)["peak"]["requested"] == saved["peak"]["requested"]
    assert memcalc("report", "saved.json", "-o", "page.svg").returncode == 0
    assert "<svg" in (tmp_path / "page.svg").read_text()


RESUMES = """
import os
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    if step == 2:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "new.pt")
        os.replace("new.pt", "last.pt")
        saved = torch.load("last.pt", map_location="cuda")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert optimizer.state[model.weight]["step"].item() == 4
"""


def test_a_script_resumes_what_it_saved(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(RESUMES)
    (tmp_path / "last.pt").write_text("mine")
    done = memcalc("simulate", "--steps", "0", "--", "python", "train.py")
    assert done.returncode == 0
    assert (tmp_path / "last.pt").read_text() == "mine"
    assert not (tmp_path / "new.pt").exists()
