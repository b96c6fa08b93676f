"""python3 -m aetheris: what it does without a server, and how it finds one."""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

from aetheris.worker import find_socket

SDK = pathlib.Path(__file__).resolve().parents[1]


class Main(unittest.TestCase):
    def run_main(self, *words, files=None, env=None):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (files or {}).items():
                pathlib.Path(folder, name).write_text(text)
            clean = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")}
            done = subprocess.run([sys.executable, "-m", "aetheris", *words], cwd=folder, capture_output=True, text=True,
                                  timeout=60, env={**clean, "PYTHONPATH": str(SDK), **(env or {})})
            return done.returncode, done.stdout, done.stderr

    def test_usage(self):
        self.assertEqual(self.run_main("--help")[0], 0)
        for words in ((), ("a", "b"), ("--other",)):
            code, out, error = self.run_main(*words)
            self.assertEqual((code, out), (2, ""))
            self.assertIn("usage: python3 -m aetheris FILE", error)

    def test_a_file_that_cannot_be_loaded_or_has_no_agent(self):
        code, _, error = self.run_main("missing.py")
        self.assertEqual(code, 1)
        self.assertIn("missing.py cannot be loaded", error)
        code, _, error = self.run_main("bad.py", files={"bad.py": "1 +"})
        self.assertEqual(code, 1)
        self.assertIn("SyntaxError", error)
        code, _, error = self.run_main("empty.py", files={"empty.py": "x = 1"})
        self.assertEqual(code, 2)
        self.assertIn("has no agent and no tool", error)

    def test_a_server_that_cannot_be_used_ends_it_with_1(self):
        files = {"one.py": "from helper import one\n", "helper.py": "from aetheris import agent\n@agent\ndef one(ctx, i): pass\n"}
        code, _, error = self.run_main("one.py", files=files, env={"AETHERIS_URL": "ftp://x"})
        self.assertEqual(code, 1)
        self.assertIn("AETHERIS_URL must begin with http://", error)

    def test_the_socket_of_a_store_in_a_parent_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            inner = pathlib.Path(folder, "a/b")
            inner.mkdir(parents=True)
            self.assertIsNone(find_socket(str(inner)))
            pathlib.Path(folder, ".aetheris").mkdir()
            self.assertIsNone(find_socket(str(inner)))
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.join(folder, ".aetheris/aetheris.sock"))
                found = find_socket(str(inner))
            self.assertTrue(os.path.samefile(os.path.join(inner, found), os.path.join(folder, ".aetheris/aetheris.sock")))
