"""The Dockerfile and the compose file: their syntax, and that their parts fit together."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import yaml

from penstock.cli import main

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL"),
    *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


def instructions():
    """Return the instructions of the Dockerfile as (name, arguments)."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in joined.split("\n")]


def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_dockerfile_has_known_instructions_and_its_words_can_be_split():
    found = instructions()
    assert found[0][0] == "FROM" and {name for name, _ in found} <= INSTRUCTIONS
    for name, arguments in found:
        assert arguments, name
        if arguments.startswith("["):
            assert all(isinstance(word, str) for word in json.loads(arguments))
        elif name in ("RUN", "COPY", "ENV"):
            shlex.split(arguments)


def test_files_and_stages_that_the_dockerfile_copies_exist():
    stages = {
        arguments.split()[2] for name, arguments in instructions() if len(arguments.split()) > 2
    }
    for name, arguments in instructions():
        for stage in re.findall(r"from=(\w+)", arguments):
            assert stage in stages
        if name == "COPY" and "--from" not in arguments:
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source


def test_the_extras_of_the_image_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"\[([a-z,]+)\]\"", (ROOT / "Dockerfile").read_text())
    assert len(named) == 2 and named[0] == named[1]
    assert set(named[0].split(",")) <= set(extras)


def test_the_image_starts_a_command_line_that_exists():
    found = dict(instructions())
    words = json.loads(found["CMD"])
    command = main.commands[words[0]]
    context = command.make_context(words[0], words[1:])
    assert (context.params["ui"], context.params["ui_host"]) == ("8081", "0.0.0.0")
    assert found["EXPOSE"] == "8081" and json.loads(found["ENTRYPOINT"]) == ["penstock"]
    health = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    main.commands[health[1]].make_context(health[1], health[2:])


def test_the_services_of_the_compose_file_fit_together():
    found = compose()
    assert set(found) == {"services", "volumes"}
    allowed = {
        *("build", "image", "init", "restart", "ports", "volumes", "shm_size", "user"),
        *("depends_on", "command", "tmpfs"),
    }
    for name, service in found["services"].items():
        assert set(service) <= allowed, name
        assert ("build" in service) != ("image" in service)
        assert set(service.get("depends_on", ())) <= set(found["services"])
        # A port that is not of this machine alone would show the API without TLS.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (ROOT / source).is_file(), source
            else:
                assert source in found["volumes"], source


def test_prometheus_and_grafana_find_what_they_read():
    services = compose()["services"]
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"][0]
    host, port = scrape["static_configs"][0]["targets"][0].split(":")
    found = dict(instructions())
    assert host in services and port == found["EXPOSE"]
    # The server refuses requests for a name that it does not know.
    words = json.loads(found["CMD"])
    assert words[words.index("--ui-name") + 1] == host
    token = scrape["authorization"]["credentials_file"]
    assert token == words[words.index("--ui-read-token") + 1]
    home = found["ENV"].partition("=")[2]
    assert f"state:{home}" in services["penstock"]["volumes"]
    assert f"--uid {services['prometheus']['user']} " in (ROOT / "Dockerfile").read_text()
    grafana = ROOT / "deploy" / "grafana"
    source = yaml.safe_load((grafana / "datasources.yml").read_text())["datasources"][0]
    assert re.fullmatch(r"http://(\w+):9090", source["url"])[1] in services
    provider = yaml.safe_load((grafana / "dashboards.yml").read_text())["providers"][0]
    targets = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert any(target.startswith(provider["options"]["path"] + "/") for target in targets)
    json.loads((ROOT / "examples" / "grafana.json").read_text())


def volumes_of(service):
    """Return where each volume and file of a service comes from, by where it is in the service."""
    parts = [volume.split(":") for volume in service.get("volumes", ())]
    return {target: (source, *mode) for source, target, *mode in parts}


def test_only_the_service_has_the_state_folder_with_the_token_that_allows_everything():
    services = compose()["services"]
    words = json.loads(dict(instructions())["CMD"])
    folder = str(Path(words[words.index("--ui-read-token") + 1]).parent)
    own = volumes_of(services["penstock"])
    # The image makes the folder for the user of the service, and it is a volume of its own.
    found = dict(instructions())
    assert folder in json.loads(found["VOLUME"]) and folder in own
    assert f" {folder} " in next(
        arguments for name, arguments in instructions() if name == "RUN" and "--owner" in arguments
    )
    others = {name: volumes_of(one) for name, one in services.items() if name != "penstock"}
    shared = {
        (name, source)
        for name, volumes in others.items()
        for source, *_ in volumes.values()
        if source in {source for source, *_ in own.values()}
    }
    assert shared == {("prometheus", own[folder][0])}
    assert others["prometheus"][folder] == (own[folder][0], "ro")


def test_the_unit_of_systemd_in_the_guide_has_a_command_line_that_exists():
    text = (ROOT / "docs" / "guides" / "operations.md").read_text()
    (unit,) = re.findall(r"```ini\n(.*?)```", text, re.S)
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    assert settings["KillMode"] == "process"
    words = shlex.split(settings["ExecStart"])
    main.commands[words[1]].make_context(words[1], words[2:])
