"""A child that answers finds places and ways to fetch in its environment, and no settings."""

import pytest

from memcalc.children import variables

SHELL = {
    "PATH": "/bin",
    "HOME": "/root",
    "https_proxy": "http://proxy",
    "HF_TOKEN": "hf_x",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_CACHE": "/data",
    "LC_ALL": "C.UTF-8",
    "MEMCALC_CACHE": "/cache",
    "TORCH_HOME": "/torch",
}
TELLING = {
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_DYNAMO_BACKEND": "inductor",
    "TORCHDYNAMO_DISABLE": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "WORLD_SIZE": "2",
    "RANK": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVIDIA_TF32_OVERRIDE": "0",
    "FSDP_OFFLOAD_PARAMS": "true",
}
SILENT = {
    "CUDA_VISIBLE_DEVICES": "3,4",
    "MEMCALC_STUB_DEVICES": "0",
    "TORCH_LOGS": "dynamo",
    "TORCH_CUDA_ARCH_LIST": "8.0",
    "PYTORCH_VERSION": "2.14",
    "NCCL_DEBUG": "INFO",
    "ACCELERATE_TORCH_DEVICE": "",
}
OWN = {"DATA_ROOT": "/data", "MODEL_WIDTH": "64"}


def test_an_answer_depends_on_no_variable_of_the_shell():
    assert variables.select({**SHELL, **TELLING, **SILENT, **OWN}) == SHELL


def test_code_of_a_user_finds_its_own_variables_and_no_library_its_settings():
    found = variables.without_settings({**SHELL, **TELLING, **SILENT, **OWN})
    assert found == {**SHELL, **OWN}


def test_what_could_change_a_figure_is_named_and_nothing_else():
    assert variables.left_out({**SHELL, **TELLING, **SILENT, **OWN}) == tuple(sorted(TELLING))


@pytest.mark.parametrize("value", ["", "-1", "3,4", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"])
def test_a_script_finds_the_simulated_gpus_where_the_shell_names_others(value):
    shell = {"CUDA_VISIBLE_DEVICES": value, "RANK": "1"}
    assert variables.numbered_gpus(shell, 2) == {"CUDA_VISIBLE_DEVICES": "0,1", "RANK": "1"}
    assert variables.numbered_gpus(OWN, 2) == OWN
