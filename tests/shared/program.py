"""The programs under test: BIN, which users run, and TESTING_BIN, which also has the native functions `fill`, `fail`, `doubt`
and `nap`. AETHERIS_BIN and AETHERIS_TESTING_BIN name them. The default of the second is `aetheris_testing` beside the first.
"""
import os
import pathlib

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parents[2])
BIN = os.environ.get("AETHERIS_BIN") or str(ROOT / "build/dev/aetheris")
TESTING_BIN = os.environ.get("AETHERIS_TESTING_BIN") or str(pathlib.Path(BIN).with_name("aetheris_testing"))
