"""Answers of model APIs: the vectors that every SDK shares, testdata/vectors/model_answers.json."""
import json
import pathlib
import unittest

from aetheris.model_answers import ModelAnswer
from aetheris.streams import is_stream

ROOT = pathlib.Path(__file__).resolve().parents[3]
CASES = json.loads((ROOT / "testdata/vectors/model_answers.json").read_text())["answers"]


class ModelAnswers(unittest.TestCase):
    def test_vectors(self) -> None:
        for case in CASES:
            with self.subTest(case["about"]):
                body = case["body"]
                for size in [1, 7, len(body)] if is_stream(case["content_type"]) else [len(body)]:
                    answer, shown = ModelAnswer.of(case["request"]), ""
                    if answer is not None and is_stream(case["content_type"]):
                        pieces = [body[at:at + size] for at in range(0, len(body), size)]
                        shown = "".join(answer.feed(piece) for piece in pieces) + answer.end()
                    elif answer is not None:
                        answer.read(body)
                    self.assertEqual(shown, case.get("text", ""))
                    self.assertEqual(answer and answer.usage(), case["usage"])


if __name__ == "__main__":
    unittest.main()
