"""The files of a NATS pod of the manifests, in folders with the same relation to each other as the pod's mounts."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

NATS: Final = ("StatefulSet", "pointsman-nats")
_PATHS: Final = re.compile(r"^(\s*(?:pid_file|store_dir|cert_file|key_file|ca_file): )(/\S+)$", re.MULTILINE)
"""Settings with a path. An `include` isn't among them: the server joins its path with the folder of the file."""

Object = dict[str, Any]


class NatsPod:
    """A pod of the StatefulSet pointsman-nats whose root is a folder.

    `objects` are the rendered ones, `secrets` the file that `pointsman nats users --kubernetes` wrote, `certificate` a
    file beside which its key stands, for the Secret pointsman-nats-tls.
    """

    def __init__(self, objects: list[Object], root: Path, secrets: Path, certificate: Path, *, number: int = 0) -> None:
        [nats] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == NATS]
        self.spec: Object = nats["spec"]["template"]["spec"]
        self.container: Object = self.spec["containers"][0]
        self.root = root
        self.environment = {"POD_NAME": f"pointsman-nats-{number}"}
        written = [each for each in yaml.safe_load_all(secrets.read_text()) if each]
        public = certificate.read_text()
        self._secrets: dict[str, dict[str, str]] = {
            **{each["metadata"]["name"]: each["stringData"] for each in written},
            "pointsman-nats-tls": {
                "tls.crt": public,
                "ca.crt": public,
                "tls.key": certificate.with_suffix(".key").read_text(),
            },
        }
        self._maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            self._mount(self.here(mount["mountPath"]), volumes.get(mount["name"], {}))

    def here(self, inside: str) -> Path:
        """The place of a path of the pod."""
        return self.root / inside.removeprefix("/")

    @property
    def config(self) -> Path:
        """The file that the container's arguments name. Its settings with a path name a place under this root."""
        args = self.container["args"]
        return self.here(args[args.index("--config") + 1])

    def change(self, changes: dict[str, str]) -> None:
        """Replace parts of the configuration, such as ports. Raises KeyError for one that isn't there."""
        text = self.config.read_text()
        for inside, here in changes.items():
            if inside not in text:
                raise KeyError(inside)
            text = text.replace(inside, here)
        self.config.write_text(text)

    def write(self, folder: Path, files: dict[str, str]) -> None:
        """Write a volume as the kubelet does: a hidden folder for each version; the names link to the newest."""
        version = folder / f"..{len(list(folder.iterdir()))}"
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(_PATHS.sub(lambda found: f'{found[1]}"{self.here(found[2])}"', text))
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
        link = folder / "..next"
        link.symlink_to(version.name)
        link.replace(folder / "..data")

    def _mount(self, folder: Path, volume: Object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            self.write(folder, self._secrets[volume["secret"]["secretName"]])
        elif "configMap" in volume:
            self.write(folder, self._maps[volume["configMap"]["name"]])
