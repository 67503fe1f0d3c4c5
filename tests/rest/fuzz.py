"""Send requests that follow from the OpenAPI document: `make fuzz-http`.

schemathesis draws the requests, and compares the answers with the document: no status of 500 and
above, no status or shape that the document does not have. The paths have the ids of a job that
exists, and wrong ones.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.dataflow.unexecuted import take_reports
from penstock.rest.openapi import document
from tests.rest.served import TOKENS, Served, lived, served

#: What is compared. Requests are drawn without the rules that the document cannot have.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
#: A stream ends with its job only. An order that ends the job would leave nothing to look at.
LEFT_OUT = ("streamEvents",)
SMALL, LARGE = 20, 5_000


def with_ids(one: Served) -> dict[str, Any]:
    """Return the document with the ids of a job as values of the parameters in paths."""
    trigger = one.of_job("/savepoints", method="POST").json["request-id"]
    known = {
        "jobid": [one.id, one.id, one.id, "none"],
        "vertexid": ["0", "1", "7", "x", "-1"],
        "checkpointid": ["2", "3", "4", "77", "x"],
        "triggerid": [trigger, "none"],
    }
    found: dict[str, Any] = json.loads(json.dumps(document()))
    for methods in found["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                values = known.get(parameter["name"])
                if values is not None:
                    parameter["schema"] = {"type": "string", "enum": list(dict.fromkeys(values))}
    return found


def fuzz(requests: int, token: str | None) -> tuple[int, str]:
    """Return the number of requests that were sent, and the output of schemathesis.

    Arguments:
        requests: the number of requests to send, at least.
        token: the token of the requests; None sends none.
    """
    with served() as one, tempfile.TemporaryDirectory() as folder:
        lived(one)
        schema = Path(folder) / "openapi.json"
        schema.write_text(json.dumps(with_ids(one)))
        sent, output, seed = 0, "", 1
        while sent < requests:
            done = subprocess.run(
                command(one, schema, token, requests, seed),
                capture_output=True,
                text=True,
                cwd=folder,
                check=False,
            )
            output += done.stdout + done.stderr
            found = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
            if done.returncode or found is None or one.ask("/jobs").status != 200:
                raise AssertionError(f"{output}\nexit code {done.returncode}")
            sent, seed = sent + int(found[1]), seed + 1
        return sent, output


def command(one: Served, schema: Path, token: str | None, requests: int, seed: int) -> list[str]:
    examples = max(1, min(200, requests // 25))
    phases = "fuzzing" if requests <= SMALL else "coverage,fuzzing"
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(schema)),
        *("--url", f"http://127.0.0.1:{one.port}", "--checks", ",".join(CHECKS)),
        *("--phases", phases, "--max-examples", str(examples), "--seed", str(seed)),
        *("--no-color", "--generation-database", "none", "--suppress-health-check", "all"),
    ]
    if token is not None:
        words += ["--header", f"Authorization: Bearer {token}"]
    for operation in LEFT_OUT:
        words += ["--exclude-operation-id", operation]
    return words


def main() -> None:
    """Fuzz with each token and with none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=LARGE)
    wanted = parser.parse_args().requests
    for name, token in (("token", TOKENS.full), ("read-only", TOKENS.read_only), ("none", None)):
        sent, _ = fuzz(wanted, token)
        take_reports()  # the program of the job is there for its graph, and is never executed
        print(f"token {name}: {sent:,} requests, none was answered with 5xx", flush=True)


if __name__ == "__main__":
    main()
