"""examples/deploy, as far as one machine can tell: scripts, images and manifests are sound, and commands parse."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from prb.cli.parse import parse
from prb.data.load import Shard
from prb.engine.executors import EXECUTORS
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import MergeConfig
from prb.registry import Spec

FOLDER = Path(__file__).parents[1] / "examples" / "deploy"
SCRIPTS = ["ray-job.sh", "slurm-array.sbatch"]
IMAGES = ["Dockerfile", "Dockerfile.cuda"]
MANIFESTS = ["kubernetes-job.yaml", "kuberay.yaml"]
VERBS: dict[str, type[Any]] = {"evaluate": EvaluateConfig, "merge": MergeConfig}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def commands(path: Path) -> list[list[str]]:
    """Every `prb …` command, with numbers in place of shell variables."""
    text = re.sub(r"(?<!:)\n\s*#.*", "", path.read_text("utf-8")).replace("\\\n", " ").replace(" \n", " ")
    if path.suffix == ".yaml":  # folded lines of a command are one
        text = re.sub(r"\n +(--\w)", r" \1", text)
    found = re.findall(r"(?:^|[\s\"])prb ((?:evaluate|merge) [^\n]*)", text)
    filled = [
        re.sub(r"\$\(\(.*?\)\)|\$\{?\w+\}?|\$shard", "1", command).replace('--shard "1"', "--shard 1/1")
        for command in found
    ]
    return [shlex.split(command.rstrip('"') if command.count('"') % 2 else command) for command in filled]


ALL = [(path.name, words) for path in sorted(FOLDER.iterdir()) for words in commands(path)]


def test_every_way_of_deployment_has_a_command():
    assert {name for name, _ in ALL} == {*SCRIPTS, *MANIFESTS}


@pytest.mark.parametrize(("name", "words"), ALL)
def test_commands_have_flags_that_exist(name, words):
    config = parse(VERBS[words[0]], words[1:], words[0])
    if isinstance(config, EvaluateConfig):
        assert config.shard or config.engine != "local", name
        EXECUTORS.check(Spec.parse(config.engine))
        if config.shard:
            Shard.parse(config.shard)
    assert config.out is not None


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_sound(name):
    subprocess.run(["bash", "-n", str(FOLDER / name)], check=True)
    subprocess.run([tool("shellcheck"), str(FOLDER / name)], check=True)


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_sound(name):
    subprocess.run([tool("hadolint"), str(FOLDER / name)], check=True)


@pytest.mark.parametrize("name", IMAGES)
def test_images_copy_only_what_the_checkout_has(name):
    text = (FOLDER / name).read_text("utf-8")
    for line in re.findall(r"^COPY (.*) \S+$", text, re.M):
        assert all((FOLDER.parents[1] / word).exists() for word in line.split())
    assert "ray[default]==2.60.0" in text  # as kuberay.yaml says


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_valid(name):
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in yaml.safe_load_all((FOLDER / name).read_text("utf-8")):
        for checked in known_to_kubernetes(document):
            validator.validate(checked, validator.latest_version(), strict=True)


def known_to_kubernetes(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Itself; of a RayJob, whose schema is KubeRay's, the pods that it describes."""
    if document["kind"] != "RayJob":
        return [document]
    assert set(document["spec"]) <= {
        "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
        "rayClusterSpec",
    }  # fmt: skip
    cluster = document["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    about = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}}
    assert cluster["rayVersion"] == "2.60.0"
    return [{**about, "template": group["template"]} for group in groups]
