"""The losses need torch, numpy and scipy; each other thing names what to install."""

import subprocess
import sys

BLOCKED = """
import sys

class Blocked:
    NAMES = {
        "huggingface_hub", "matplotlib", "rich", "sacrebleu", "safetensors",
        "sentencepiece", "tensorboard", "typer", "yaml",
    }

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

sys.meta_path.insert(0, Blocked())
"""


def run(script: str) -> str:
    """What a script prints where only torch, numpy and scipy are installed."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_losses_need_only_torch_numpy_and_scipy_and_the_rest_names_its_extra() -> None:
    script = """
import oaxe, torch
loss = oaxe.OaXELoss()(torch.zeros(1, 2, 4), torch.tensor([[1, 2]]))
for name in oaxe.__all__:
    if name != "Translator":
        getattr(oaxe, name)
print(f"{loss:.4f}")
try:
    oaxe.Translator
except ImportError as error:
    print(error)
try:
    oaxe.plot_alignment(torch.zeros(2, 4), torch.tensor([1, 2]))
except ImportError as error:
    print(error)
"""
    loss, translator, plot = run(script).splitlines()
    assert loss == "1.3863"
    assert translator.startswith("oaxe.Translator needs ")
    assert translator.endswith(': pip install "oaxe[toolkit]"')
    assert plot.endswith('matplotlib: pip install "oaxe[plot]"')


def test_version_is_loaded_without_torch() -> None:
    """The build reads it from the source."""
    script = "import oaxe; print(oaxe.__version__, 'torch' in sys.modules)"
    version, torch_is_loaded = run(script).split()
    assert version[0].isdigit()
    assert torch_is_loaded == "False"
