"""A PostgreSQL server for chaos: scripts/postgres, behind a proxy, with a synchronous standby that can take over."""
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import subprocess
import time

from proxy import Proxy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def script():
    loader = importlib.machinery.SourceFileLoader("aetheris_postgres", str(ROOT / "scripts/postgres"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Postgres:
    """`url` leads through the proxy, whichever server answers behind it."""

    def __init__(self, connections):
        self.script = script()
        self.primary = self.script.Server([f"max_connections={connections}"])
        self.proxy = Proxy(self.primary.port)
        self.url = f"postgres://aetheris@127.0.0.1:{self.proxy.port}/postgres"
        self.old = []
        self.stalled = None  # the process of the primary that feeds the standby

    def tool(self, name, *words, **more):
        return subprocess.run([self.primary.bin / name, *map(str, words)], check=True, capture_output=True, text=True,
                              timeout=60, **self.primary.as_user(), **more).stdout

    def sql(self, text, server=None):
        server = server or self.primary
        return self.tool("psql", "-h", "127.0.0.1", "-p", server.port, "-U", "aetheris", "-d", "postgres", "-Atc", text)

    def kill_backends(self, share, cancel=False):
        """Ends some of the connections that others have, or only what they do just now; how many."""
        act = "pg_cancel_backend" if cancel else "pg_terminate_backend"
        return len(self.sql(f"SELECT {act}(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                            f"AND pid <> pg_backend_pid() AND random() < {share}").split())

    def stall(self):
        """Stops replication to the standby."""
        self.stalled = int(self.sql("SELECT pid FROM pg_stat_replication").split()[0])
        os.kill(self.stalled, signal.SIGSTOP)

    def failover(self, during_outage):
        """Creates a synchronous standby, runs `during_outage()`, kills the primary and promotes the standby."""
        server = self.script.Server.__new__(self.script.Server)
        server.__dict__.update(self.primary.__dict__)
        with self.script.socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            server.port = free.getsockname()[1]
        server.data = self.primary.folder / f"data{len(self.old) + 2}"
        self.tool("pg_basebackup", "-h", "127.0.0.1", "-p", self.primary.port, "-U", "aetheris", "-D", server.data, "-R",
                  "-X", "stream", "-c", "fast")
        server.start()
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        while "sync" not in self.sql("SELECT sync_state FROM pg_stat_replication").split():
            pass
        during_outage()
        self.primary.process.send_signal(signal.SIGQUIT)
        if self.stalled:
            time.sleep(0.2)  # it has its own SIGQUIT by now, and sends nothing more
            os.kill(self.stalled, signal.SIGCONT)
            self.stalled = None
        self.primary.stop()
        self.tool("pg_ctl", "-D", server.data, "-w", "promote")
        self.old.append(self.primary)
        self.primary = server
        self.sql("ALTER SYSTEM RESET synchronous_standby_names")  # the new primary has no standby
        self.sql("SELECT pg_reload_conf()")
        self.proxy.target = ("127.0.0.1", server.port)
        self.proxy.cut()

    def end(self):
        self.proxy.end()
        self.primary.end()
