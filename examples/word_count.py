"""Counts words: every line of text files, split at white space, with a running count per word.

    penstock run examples/word_count.py --checkpoint-dir DIR -- INPUT OUTPUT

INPUT is a file, a folder or a glob; OUTPUT a folder, into which a line `word count` is written
for each word that is read: the first `the` makes `the 1`, the second `the 2`. `examples/demo.py`
runs this program and kills its processes.
"""

import sys

from penstock import FileSink, StreamExecutionEnvironment, TextLines


def main(source: str, output: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    # State goes through RocksDB from the first snapshot on, however little there is of it.
    env.get_checkpoint_config().set_inline_threshold(0)
    lines = env.read_text_file(source).uid("lines")
    pairs = lines.flat_map(lambda line: [(word, 1) for word in line.split()])
    counts = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    texts = counts.uid("counts").map(lambda pair: f"{pair[0]} {pair[1]}")
    texts.sink_to(FileSink(output, TextLines())).uid("files")
    env.execute("word count")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: penstock run examples/word_count.py -- INPUT OUTPUT")
    main(sys.argv[1], sys.argv[2])
