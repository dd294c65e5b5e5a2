"""The folder that holds a finished translator, in the manner of the Hugging Face hub.

model.safetensors   the weights; tied ones once
subwords.model      the SentencePiece model
config.json         format, system with its options and architecture, languages, decoding
                    defaults, checksums
README.md           what the model is and how to use it (:mod:`oaxe.decoding.hub`); not needed
ngrams/             those that it is decoded with, if it is (:mod:`oaxe.text.ngram_files`)

Nothing in it can run code: a system that is not part of this package must be named by the user.
``config.json`` is written last: a folder that has it is whole. A model that was exported for a CPU
(:mod:`oaxe.engine.export`) has other files and a ``precision``; it is loaded without torch.
"""

import json
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from oaxe.decoding.checks import check_config, check_finite, verify_files
from oaxe.support import strict_json
from oaxe.support.checksums import sha256
from oaxe.support.config import build
from oaxe.support.errors import UserError, listed
from oaxe.support.files import make_folder, sync
from oaxe.text.ngram_files import NGRAMS, with_ngrams
from oaxe.text.subwords import Subwords

if TYPE_CHECKING:
    from torch import Tensor

    from oaxe.engine.engine import Engine
    from oaxe.systems import System

FORMAT = 2
WEIGHTS, SUBWORDS, CONFIG = FILES = ("model.safetensors", "subwords.model", "config.json")
RUN = "config.yaml"
EXPORTED = ("encoder.onnx", "decoder.onnx", "tables.safetensors")
KEYS = ("architecture", "decoding", "languages", "options", "sha256", "system")


def save_folder(
    folder: Path, system: "System", subwords: Subwords, description: Mapping[str, Any]
) -> None:
    """Write the three files, each under another name first; and the n-grams, if there are any."""
    from safetensors.torch import save_file

    make_folder(folder)
    decoding = with_ngrams(folder, description["decoding"], subwords)
    weights = {
        name: tensor.cpu().contiguous()
        for name, tensor in system.state_dict().items()
        if name.partition(".")[0] not in system.training_parts
    }
    new = {name: folder / f"{name}.new" for name in FILES}
    save_file(weights, new[WEIGHTS])
    new[SUBWORDS].write_bytes(subwords.model)
    shutil.copymode(new[SUBWORDS], new[WEIGHTS])  # safetensors makes it readable by its owner only
    config = {
        "format": FORMAT,
        **system.description(),
        **description,
        "decoding": decoding,
        "sha256": {name: sha256(new[name]) for name in (WEIGHTS, SUBWORDS)},
    }
    new[CONFIG].write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in new.values():
        sync(path)
    # Only now, with room for all of it proven, does what was here before have to go.
    (folder / CONFIG).unlink(missing_ok=True)
    for name, path in new.items():
        path.replace(folder / name)


def load_folder(
    path: str | Path, systems: Collection[str] = (), threads: int | None = None
) -> tuple["System | Engine", Path, dict[str, Any]]:
    """The model, the path of its subwords, and the config.

    Args:
        path: a folder, a finished run, or a name on the hub.
        systems: modules of the user's own that may be imported.
        threads: of a model that was exported for a CPU; None: as many as there are cores.
    """
    folder = _find(path)
    config = _read_config(folder)
    exported = "precision" in config
    needed = (*(EXPORTED if exported else [WEIGHTS]), SUBWORDS)
    verify_files(folder, config, needed, folder / CONFIG)
    if config["decoding"].get("lm") == NGRAMS:
        config["decoding"]["lm"] = str(folder / NGRAMS)
    if exported:
        from oaxe.engine.engine import Engine

        return Engine(folder, config, threads), folder / SUBWORDS, config
    return _load_system(folder / WEIGHTS, config, systems), folder / SUBWORDS, config


def is_exported(path: str | Path) -> bool:
    """Whether a folder holds a model for a CPU, which needs no torch."""
    return all((Path(path) / name).is_file() for name in (CONFIG, *EXPORTED))


def _find(path: str | Path) -> Path:
    folder = Path(path)
    if (folder / RUN).is_file():  # a training run: its model, once it is finished
        folder /= "model"
        if not folder.is_dir():
            best = sorted(Path(path).glob("best/step-*"))
            other = f", or take its newest validated checkpoint, {best[-1]}" if best else ""
            raise UserError(
                f"the run {path} is not finished: it has no folder `model` yet; run the command "
                f"that began it again, which goes on{other}"
            )
    if folder.is_file():
        raise UserError(f"{path} is a file; give the folder of a run or of a saved model")
    if not folder.is_dir():
        if folder.parent != Path() and folder.parent.is_dir():
            raise UserError(f"there is no folder {path}; give one of those in {folder.parent}")
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path)):
            raise UserError(
                f"there is no folder {path}; check the path, or give a name on the Hugging Face "
                "hub, such as owner/model"
            )
        folder = download(str(path))
    return folder


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        parts = (RUN, WEIGHTS, EXPORTED[0])
        inside = sorted({str(p.parent) for p in folder.glob("*/*") if p.name in parts})
        raise UserError(
            f"{folder} holds no translator: it has no {CONFIG}. Give "
            + (", ".join(inside[:5]) or "a run that oaxe train made, or a folder of oaxe export")
        )
    try:
        config = strict_json.read(path)
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; save or fetch the model again") from None
    if not isinstance(config, dict) or "format" not in config:
        raise UserError(
            f"{path} was not written by oaxe but by another toolkit, whose models have other "
            "weights; give a run that oaxe train made, or a folder that save_pretrained wrote"
        )
    if "order" in config:
        raise UserError(
            f"{path.parent} holds n-grams, no translator; give a model, and them with "
            f"--set method=beam --set lm={path.parent}"
        )
    if config["format"] != FORMAT:
        found = config["format"]
        raise UserError(
            f"{path} has format {found}, this version of oaxe reads {FORMAT}; "
            "use the version that wrote it"
        )
    missing = [key for key in KEYS if key not in config]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; take the file that was written")
    check_config(config, path)
    return config


def _load_system(path: Path, config: Mapping[str, Any], systems: Collection[str]) -> "System":
    import torch
    from safetensors.torch import load_file

    from oaxe.model.undrawn import without_drawing
    from oaxe.systems import build as new_system
    from oaxe.systems import find

    name, where = str(config["system"]), str(path.parent / CONFIG)
    options = build(find(name, systems).Options, config["options"], where)
    try:
        # Neither memory nor random numbers for weights read next.
        with torch.device("meta"), without_drawing():
            system = new_system(name, config["architecture"], options)
    except (ArithmeticError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f'"architecture" in {where} is none: {error}') from None
    for part in system.training_parts:
        setattr(system, part, None)
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is no safetensors file: {error}") from None
    check_weights(system.state_dict(), weights, f"{path} does not fit its {CONFIG}")
    check_finite(weights, path)
    system.load_state_dict({name: w.float() for name, w in weights.items()}, assign=True)
    return system.eval()


def check_weights(
    expected: "Mapping[str, Tensor]", found: "Mapping[str, Tensor]", what: str
) -> None:
    """Raises UserError with all tensors that are missing, of another shape, or not expected."""
    problems = []
    for name in sorted({*expected, *found}):
        if name not in found:
            problems.append(f"{name} is missing")
        elif name not in expected:
            problems.append(f"{name} is not part of this model")
        elif expected[name].shape != found[name].shape:
            want, got = tuple(expected[name].shape), tuple(found[name].shape)
            problems.append(f"{name} has shape {got}, not {want}")
    if problems:
        raise UserError(f"{what}:{listed(problems)}")


def is_of_the_hub(error: Exception) -> bool:
    """Whether the hub's client raised it: it passes on errors of HTTP clients, which change."""
    return isinstance(error, (OSError, ValueError)) or "httpx" in type(error).__module__


def download(name: str, revision: str | None = None) -> Path:
    """A model of the hub: its newest version, or that of a branch, a tag or a commit."""
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed

    if Path(name).is_dir():
        raise UserError(f"{name} is a folder here, which has no revisions; leave out `revision`")
    patterns = [*FILES, *EXPORTED, f"{NGRAMS}/*"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:
        if not is_of_the_hub(error):
            raise
        raise UserError(
            f"{name} is no folder here, and the Hugging Face hub did not give a model of that "
            f"name: {' '.join(str(error).split())} To use a run or folder of yours, check the path"
        ) from None
