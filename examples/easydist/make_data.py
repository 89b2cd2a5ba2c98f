"""Writes labelled lines of text to a bucket: 1 for Python, 0 for prose.

The text is that of this repository, its code and its documentation, so that nothing
needs to be downloaded; --folder takes any other folder with .py and .md files.
"""

import argparse
import os
import random
from pathlib import Path

import boto3
from botocore.exceptions import ClientError

HERE = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "docs")
ENDINGS = {".py": 1, ".md": 0}


def lines_of(folder: Path, ending: str) -> list[str]:
    """Returns the lines with text of all files with this ending."""
    places = [folder / name for name in FOLDERS if (folder / name).is_dir()] or [folder]
    paths = [p for place in places for p in sorted(place.rglob(f"*{ending}"))]
    texts = [line for path in paths for line in path.read_text().splitlines()]
    return [text.replace("\t", " ") for text in texts if len(text.strip()) > 10]


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--lines", type=int, default=6000, help="in all, at most")
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    chance = random.Random(0)
    rows: list[str] = []
    for ending, label in ENDINGS.items():
        found = lines_of(given.folder, ending)
        kept = chance.sample(found, min(len(found), given.lines // 2))
        rows += [f"{label}\t{text}" for text in kept]
    if not rows:
        parser.error(f"--folder={given.folder} has no .py and .md files with text")
    chance.shuffle(rows)

    bucket = os.environ.get("EASYDIST_BUCKET", "shoal-easydist")
    prefix = os.environ.get("EASYDIST_PREFIX", "text")
    s3 = boto3.client("s3")
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError:
        region = s3.meta.region_name
        is_default = region in (None, "us-east-1")
        where = {} if is_default else {"LocationConstraint": region}
        s3.create_bucket(
            Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {})
        )
    for number in range(given.files):
        body = "\n".join(rows[number :: given.files]).encode()
        key = f"{prefix}/lines-{number:03}.txt"
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    print(f"{len(rows):,} lines in {given.files} files: s3://{bucket}/{prefix}/")


if __name__ == "__main__":
    main()
