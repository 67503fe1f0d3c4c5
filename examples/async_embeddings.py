"""Finds the topic of each message with a language model, which gets many messages at a time.

    python examples/async_embeddings.py
    python examples/async_embeddings.py --messages 20000 --batch-size 1 --kills 0

The model turns a text into a vector. A message has the topic whose description has the nearest
vector. Meanwhile workers get SIGKILL. The job goes back to its newest snapshot, and sends the
messages that were at the model to it again. In the end each message must be in the committed files
once, with its topic.

Needs wordllama (`pip install wordllama`), a small model whose package has its weights, 16 MB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from killed import HeldBackSource, Kills

from penstock import (
    AsyncDataStream,
    BatchedFunction,
    FileSink,
    JsonLines,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
)

TOPICS = {
    "delivery": "the parcel is late, lost or damaged",
    "payment": "the invoice, a refund or a credit card",
    "account": "the password, the login or the e-mail address",
    "praise": "thank you, great service, very happy",
}
OPENINGS = ["Hello,", "Good morning!", "Hi there,", "I am writing again:", "Dear team,"]
MATTERS = [
    "my parcel has not arrived yet",
    "I was charged twice on my credit card",
    "I cannot log in with my new password",
    "thank you so much, I love it",
    "the box was broken when it came",
    "when do I get my money back",
]


def message(number: int) -> tuple[int, str]:
    """Return the message of a number."""
    opening, matter = OPENINGS[number % 5], MATTERS[number * 7 % 6]
    return number, f"{opening} {matter}. My order is {number * 7919 % 100_000}."


def load_model() -> Any:
    """Load the model from its package, without a download."""
    import wordllama

    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


class FindTopic(BatchedFunction):
    """Returns the number and the topic of each message."""

    def open(self, runtime_context: Any) -> None:
        self.model = load_model()
        self.topics = self.model.embed(list(TOPICS.values()), norm=True)

    def invoke_batch(self, values: list[tuple[int, str]]) -> list[tuple[int, str]]:
        vectors = self.model.embed([text for _, text in values], norm=True)
        nearest = (vectors @ self.topics.T).argmax(axis=1)
        names = list(TOPICS)
        return [(number, names[best]) for (number, _), best in zip(values, nearest, strict=True)]


def find_topics(given: argparse.Namespace, gate: Path, output: Path) -> StreamExecutionEnvironment:
    """Return the program."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(given.parallelism)
    env.enable_checkpointing(50)  # milliseconds
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(given.kills + 3, 0))
    messages = env.from_source(HeldBackSource(given.messages, message, gate), None, "messages")
    topics = AsyncDataStream.batched(
        messages.rebalance(),
        FindTopic(),
        Time.seconds(60),
        batch_size=given.batch_size,
        batch_wait=given.batch_wait,
        ordered=False,
        run_in="thread",  # one copy of the model computes in one thread
    )
    topics.name("topics").sink_to(FileSink(output, JsonLines()))
    return env


def main() -> int:
    """Run the job, and compare what was committed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=8_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batch-wait", type=int, default=10, help="milliseconds")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--parallelism", "-p", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-example-") as folder:
        gate, output = Path(folder) / "gate", Path(folder) / "topics"
        kills = Kills(given.kills, gate)
        result = kills.run(find_topics(given, gate, output), "embeddings")
        calls, sent = result.metric("numCalls"), result.metric("numRecordsInCalls")
        print(
            f"embeddings: {given.messages:,} messages in {kills.seconds:.1f} s · "
            f"{calls:,} calls of {sent / calls:.1f} messages"
        )
        function = FindTopic()
        function.open(None)
        wanted = function.invoke_batch(list(map(message, range(given.messages))))
        return kills.report(output, Counter(wanted))


if __name__ == "__main__":
    sys.exit(main())
