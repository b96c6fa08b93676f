"""The vectors that every SDK shares: testdata/vectors/code.json."""
import json
import pathlib
import unittest
from typing import Any, Optional

from aetheris.canonical import blinded_hash, canonical
from aetheris.errors import InvalidInput
from aetheris.positions import Positions
from aetheris.values import RandomNumbers

ROOT = pathlib.Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "testdata/vectors/code.json").read_text())


def given(positions: Positions, step: Any) -> Optional[str]:
    scope, name = step["scope"], step["name"]
    try:
        if step["act"] == "next":
            return positions.next(scope, name, step.get("key"))
        if step["act"] == "closed_scope":
            return positions.closed_scope(scope, name, step.get("number"))
        return {"loop": positions.loop, "open_scope": positions.open_scope}[step["act"]](scope, name)
    except InvalidInput:
        return None


class Vectors(unittest.TestCase):
    def test_positions(self) -> None:
        for case in VECTORS["positions"]:
            positions = Positions()
            for number, step in enumerate(case["steps"]):
                with self.subTest(case["about"], number=number):
                    if step["act"] == "forget_inside":
                        positions.forget_inside(step["scope"])
                    else:
                        self.assertEqual(given(positions, step), step["gives"])

    def test_random_numbers(self) -> None:
        for case in VECTORS["random"]:
            numbers = RandomNumbers(case["seed"], case["scope"])
            self.assertEqual([numbers.next() for _ in case["numbers"]], case["numbers"])

    def test_hashes_of_arguments(self) -> None:
        for case in VECTORS["arguments"]:
            self.assertEqual(canonical(case["arguments"]), case["canonical"])
            self.assertEqual(blinded_hash(case["blind"], case["arguments"]), case["hash"])


if __name__ == "__main__":
    unittest.main()
