#!/usr/bin/env python3
"""The conformance suite of MCP, whole: what `./dev conformance` says (tests/conformance/run.py)."""
import os
import pathlib
import sys

RUN = pathlib.Path(__file__).resolve().parent / "conformance/run.py"
os.execv(sys.executable, [sys.executable, str(RUN)])
