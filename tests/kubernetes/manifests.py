"""Read ``deploy/kubernetes/`` as kustomize does, without kustomize. What is not known here is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.composition.compose_file import read_environment_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
WORKERS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""The overlays, and the ACCELERATOR of the image of each one's workers."""

APPLIED = ("migrate", *(f"overlays/{name}" for name in WORKERS), "autoscaling", "monitoring", "ingress")
"""The folders that an operator applies."""

Document = dict[str, Any]


@cache
def read(folder: str) -> tuple[Document, ...]:
    """Return all documents that kustomize makes of a folder. ConfigMaps keep their names, without a hash."""
    return tuple(_documents((FOLDER / folder).resolve()))


def _documents(folder: Path) -> Iterator[Document]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "resources", "generatorOptions", "configMapGenerator", "patches"}
    assert kustomization.keys() <= known, f"{folder}: not understood: {sorted(kustomization.keys() - known)}"
    patches = [yaml.safe_load((folder / patch["path"]).read_text()) for patch in kustomization.get("patches", [])]
    for resource in kustomization.get("resources", []):
        path = (folder / resource).resolve()
        for document in _documents(path) if path.is_dir() else yaml.safe_load_all(path.read_text()):
            merged = document
            for patch in patches:
                if all(document[field] == patch[field] for field in ("apiVersion", "kind")) and (
                    document["metadata"]["name"] == patch["metadata"]["name"]
                ):
                    merged = _merged(merged, patch)
            yield merged
    for generated in kustomization.get("configMapGenerator", []):
        assert generated.keys() == {"name", "envs"}, f"{folder}: not understood: {generated}"
        data: dict[str, str] = {}
        for file in generated["envs"]:
            data |= read_environment_file(folder / file)
        metadata = {"name": generated["name"], **kustomization.get("generatorOptions", {})}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


MERGED_BY = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""The lists of which a patch changes the entries with the same value of this field. It replaces any other list."""


def _merged(document: Document, patch: Document) -> Document:
    """Return a document with the fields of a strategic merge patch."""
    found = dict(document)
    for name, value in patch.items():
        own = document.get(name)
        if name in MERGED_BY and own is not None:
            key = MERGED_BY[name]
            kept = {entry[key]: entry for entry in own}
            changed = [_merged(kept.pop(entry[key], {}), entry) for entry in value]
            found[name] = [*changed, *kept.values()]  # in the order of kustomize
        else:
            found[name] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return found


def of_kind(documents: tuple[Document, ...], kind: str) -> dict[str, Document]:
    """Return the documents of a kind by their names."""
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


@dataclass(frozen=True, slots=True)
class Role:
    """A role of the service as a pod. raw: the document of its Deployment or Job; settings: the variables of each of
    its ConfigMaps; secrets: the secret and the key of each further variable, with `?` at the end of the key where the
    secret may be missing.
    """

    raw: Document
    settings: Mapping[str, Mapping[str, str]]
    secrets: Mapping[str, tuple[str, str]]

    @property
    def pod(self) -> Document:
        """What Kubernetes starts."""
        template: Document = self.raw["spec"]["template"]
        return template

    @property
    def container(self) -> Document:
        """Its only container."""
        (container,) = self.pod["spec"]["containers"]
        document: Document = container
        return document

    @property
    def variables(self) -> dict[str, str]:
        """What its ConfigMaps set."""
        return {name: value for one in self.settings.values() for name, value in one.items()}


def roles(folder: str) -> dict[str, Role]:
    """Return the roles that a folder starts, by the command that each runs."""
    documents = read(folder)
    maps = of_kind(documents, "ConfigMap")
    found = {}
    for one in documents:
        if one["kind"] not in ("Deployment", "Job"):
            continue
        (container,) = one["spec"]["template"]["spec"]["containers"]
        names = [source["configMapRef"]["name"] for source in container["envFrom"]]
        secrets = {}
        for variable in container["env"]:
            reference = variable["valueFrom"]["secretKeyRef"]
            secrets[variable["name"]] = reference["name"], reference["key"] + "?" * reference.get("optional", False)
        (command,) = container["args"]
        found[command] = Role(one, {name: maps[name]["data"] for name in names}, secrets)
    return found
