#!/usr/bin/env python3
"""The sandbox of tools and MCP servers: files, network, processes and secrets that are out of reach.

Prints `ok NAME` or `not ok NAME` for each test.
As root, the servers run as another user (tests/shared/attacks.py). tests/shared/program.py finds the program.
  tool_limits_sandbox.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sys

from shared.api_keys import certificate
from shared.attacks import AGENTS, ATTACK, USER, as_user, attack, run_or_skip, serving_as_user, user_home
from shared.home import Skip, expect, home, until
from shared.server import Server

TESTS = []


def test(function):
    TESTS.append(function)
    return function


MCP_SERVER = pathlib.Path(__file__).resolve().parent / "shared/mcp_server.py"


def sandbox_features_of_user():
    with user_home() as h:
        process = h.start("doctor", "--sandbox", "--json", prefix=as_user())
        return json.loads(process.communicate()[0])


def require(can, *abilities):
    missing = [name for name in abilities if not can[name]]
    if missing:
        raise Skip("this machine cannot limit " + " and ".join(missing))


def sandbox_features():
    with home() as h:
        return expect(h.run("doctor", "--sandbox", "--json"), 0).json()


@test
def a_sandboxed_tool_cannot_open_the_store():
    require(sandbox_features(), "files")
    with serving_as_user(", sandbox: { read: [attack.py] }") as s:
        folder = s.h.path / ".aetheris"
        paths = [str(folder / name) for name in ("aetheris.db", "aetheris.db-wal", "aetheris.db.lock")]
        result = attack(s, {"open_files": [*paths, str(s.h.path / "agents.yaml"), str(s.h.path / "attack.py")]})["open_files"]
        for path in (*paths, str(s.h.path / "agents.yaml")):
            assert result[path].startswith("refused"), result
        assert result[str(s.h.path / "attack.py")].startswith("read"), result
    with serving_as_user() as s:  # without a sandbox it can, as docs/security.md states
        path = str(s.h.path / ".aetheris/aetheris.db")
        assert attack(s, {"open_files": [path]})["open_files"][path].startswith("read")


@test
def a_sandboxed_tool_cannot_open_files_of_secrets_and_keys():
    require(sandbox_features(), "files")
    agents = AGENTS % ", env: { TOKEN: 'secret:TOKEN' }, sandbox: { read: [attack.py, keys] }"
    with user_home(agents=agents) as h:
        folder = h.path / "keys"
        folder.mkdir()
        for name in ("token", "key", "other"):
            (folder / name).write_text("text of " + name)
            os.chmod(folder / name, 0o600)
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                os.chown(path, USER, USER)
        h.env.update(TOKEN_FILE="keys/token", AETHERIS_API_KEY_FILE=str(folder / "key"))
        s = Server(h, prefix=as_user())
        result = attack(s, {"open_files": [str(folder / name) for name in ("token", "key", "other")]})["open_files"]
        assert result[str(folder / "token")].startswith("refused"), result
        assert result[str(folder / "key")].startswith("refused"), result
        assert result[str(folder / "other")] == "read: text of other", result


@test
def a_sandbox_that_includes_the_tls_key_is_rejected():
    require(sandbox_features(), "files")
    with home() as h:
        (h.path / "attack.py").write_text(ATTACK)
        (h.path / "agents.yaml").write_text(AGENTS % ", sandbox: { read: [attack.py, one.key] }")
        crt, key = certificate(h, "one")
        result = expect(h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0", "--tls-cert", crt, "--tls-key", key), 2)
        assert "one.key belongs to the runtime" in result.err, result


@test
def a_tool_result_cannot_make_a_verifier_read_the_secrets_of_the_runtime():
    agents = """
aetheris: 1
tools:
  w:
    command: ["printf", "%s", '{"id": ".aetheris/secrets", "version": "1"}']
    output: json
    effect: at_most_once
    changes: [ { type: file, id: "${ .result.id }", op: update, version: "${ .result.version }" } ]
    verify: { file: "${ .change.id }" }
agents:
  a:
    plan: [ { id: w, tool: w }, { id: k, wait: { type: signal, key: k }, needs: [w] } ]
"""
    with home() as h:
        (h.path / ".aetheris").mkdir()
        (h.path / ".aetheris/secrets").write_text("TOKEN=abcdef")
        (h.path / "agents.yaml").write_text(agents)
        s = Server(h)
        s.post("/api/jobs", {"agent": "a", "id": "j"})
        until(lambda: s.status("j") == "waiting")
        status, result = s.post("/api/jobs/j/signal", {"wait_type": "signal", "correlation_key": "k"})
        assert status < 300, result
        until(lambda: "confirmation_checked" in json.dumps(s.get("/api/jobs/j/events")[1]))
        events = s.get("/api/jobs/j/events")[1]["events"]
        (looked,) = [e["payload"] for e in events if e["type"] == "confirmation_checked"]
        assert looked["verdict"] == "unreachable", looked
        assert hashlib.sha256(b"TOKEN=abcdef").hexdigest() not in json.dumps(events), events


@test
def a_sandboxed_tool_has_no_network_and_a_limited_number_of_processes():
    can = sandbox_features_of_user()
    require(can, "network", "processes")
    with serving_as_user(", sandbox: { network: none, processes: 6 }") as s:
        result = attack(s, {"confined": [s.address]})["confined"]
        assert result["tcp"].startswith("refused"), result
        assert result["processes"] < 6, result
        assert result["uid"] == (USER if os.geteuid() == 0 else os.geteuid()), result
        assert result["capabilities"] == 0, result
    with serving_as_user() as s:
        result = attack(s, {"confined": [s.address]})["confined"]
        assert result["tcp"] == "connected" and result["processes"] == 12, result


def sandboxed_server(sandbox):
    return f"""
aetheris: 1
tools:
  s: {{ mcp: {{ command: ["python3", "-B", "mcp_server.py", "--journal", "said/journal", "--tools", "said/tools.json"]{sandbox} }} }}
agents:
  reaches: {{ plan: [ {{ id: r, tool: s.reach, args: "${{ .input }}" }} ], output: "${{ .steps.r }}" }}
"""


@contextlib.contextmanager
def serving_mcp(agents, tools):
    """A server whose agents file has the MCP server of the tests with these additional tools."""
    with user_home(agents=agents) as h:
        folder = h.path / "said"
        folder.mkdir()
        shutil.copy(MCP_SERVER, h.path / "mcp_server.py")
        (folder / "tools.json").write_text(json.dumps(tools))
        os.chmod(h.path / "mcp_server.py", 0o644)
        if os.geteuid() == 0:
            os.chown(folder, USER, USER)
        checks = h.start("check", "agents.yaml", prefix=as_user())
        result = checks.communicate()
        assert checks.returncode == 0, result
        yield Server(h, prefix=as_user())


@test
def an_mcp_server_is_confined_to_its_sandbox():
    require(sandbox_features(), "files")
    require(sandbox_features_of_user(), "network")
    reach = {"reach": {"description": "Opens a file and connects", "inputSchema": {"type": "object"}}}
    for sandbox, held in ((", sandbox: { read: [mcp_server.py], write: [said], network: none }", True), ("", False)):
        with serving_mcp(sandboxed_server(sandbox), reach) as s:
            targets = {"path": str(s.h.path / ".aetheris/aetheris.db"), "address": s.address}
            status, job = s.post("/api/jobs?wait=60s", {"agent": "reaches", "input": targets})
            assert (status, job["status"]) == (201, "completed"), job
            result = json.loads(job["result"])
            for what in ("path", "address"):
                assert result[what].startswith("refused: ") if held else result[what] == "reached", (sandbox, result)


@test
def a_sandbox_of_an_mcp_server_with_a_missing_folder_is_rejected():
    require(sandbox_features(), "files")
    agents = """
aetheris: 1
tools:
  s: { mcp: { command: ["python3", "x.py", "--nothing"], sandbox: { write: ["%s"] } } }
agents:
  a: { plan: [ { id: w, wait: { type: signal, key: k } } ] }
"""
    with home() as h:
        (h.path / "agents.yaml").write_text(agents % (h.path / "nowhere"))
        result = h.run("check", "agents.yaml", "--accept")
        assert result.code != 0 and "sandbox.write" in result.out + result.err, result


@test
def a_changed_secret_is_redacted_from_results_of_a_running_mcp_server():
    agents = """
aetheris: 1
tools:
  uses: { command: ["true"], env: { TOKEN: "secret:TOKEN" }, effect: read }
  s: { mcp: { command: ["python3", "-B", "mcp_server.py", "--journal", "said/journal", "--tools", "said/tools.json"] } }
agents:
  uses:   { plan: [ { id: u, tool: uses } ] }
  echoes: { plan: [ { id: e, tool: s.echo, args: { text: "${ .input }" } } ], output: "${ .steps.e }" }
"""
    with serving_mcp(agents, {}) as s:
        def done(agent, given):
            status, job = s.post("/api/jobs?wait=60s", {"agent": agent, "input": given})
            assert (status, job["status"]) == (201, "completed"), job
            return job["result"]

        secrets = s.h.path / ".aetheris/secrets"
        for value in ("first-41c2", "second-97be", "third-5d06"):
            secrets.write_text(f"TOKEN={value}\n")
            secrets.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(secrets, USER, USER)
            done("uses", {})
            assert done("echoes", f"it is {value}") == "it is [secret TOKEN]"
        servers = {line["pid"] for line in map(json.loads, (s.h.path / "said/journal").read_text().splitlines())}
        assert len(servers) == 1, servers


@test
def a_secret_of_another_tool_is_redacted_from_a_tools_result():
    agents = """
aetheris: 1
tools:
  uses: { command: ["true"], env: { TOKEN: "secret:SECRET_OF_THE_SERVER" }, effect: read }
  echo: { command: ["printf", "%s", "${ .args.text }"], effect: read }
agents:
  echoes: { plan: [ { id: e, tool: echo, args: { text: "${ .input }" } } ], output: "${ .steps.e }" }
"""
    with serving_as_user(agents=agents) as s:
        for text in ("canary-7f3a91", "63616E6172792D376633613931", "Y2FuYXJ5LTdmM2E5MQ=="):
            status, job = s.post("/api/jobs?wait=60s", {"agent": "echoes", "input": {"t": 1} and text})
            assert (status, job["status"]) == (201, "completed"), job
            assert job["result"].startswith("[secret SECRET_OF_THE_SERVER]"), job["result"]


@test
def check_notes_where_data_chooses_a_host_a_file_or_an_option():
    agents = """
aetheris: 1
%s
tools:
  d: { command: ["date", %s"${ .args.id }"], effect: read }
  f: { command: ["true"], changes: [ { type: t, id: i, op: o, ref: r } ], verify: { http_etag: "%s" } }
  g: { command: ["true"], changes: [ { type: t, id: i, op: o } ], verify: { file: %s } }
agents:
  a: { plan: [ { id: w, tool: d, args: { id: "1" } } ] }
"""
    places = ("tools.d.command[1]", "tools.f.verify.http_etag", "tools.g.verify.file")
    with home() as h:
        (h.path / "a.yaml").write_text(agents % ("", "", "${ .change.ref }", '"${ .change.id }"'))
        result = expect(h.run("check", "a.yaml"), 0)
        for place in places:
            assert place in result.err, (place, result)
        (h.path / "a.yaml").write_text(agents % ("outbound: { allow: [h] }", '"--", ', "http://h/${ .change.ref }",
                                                 '{ path: "${ .change.id }", below: ["."] }'))
        result = expect(h.run("check", "a.yaml"), 0)
        for place in places:
            assert place not in result.err, (place, result)


@test
def check_and_serve_report_programs_that_could_bypass_approvals():
    agents = """
aetheris: 1
%s
tools:
  pay:   { command: ["true"], effect: at_most_once%s }
  open:  { command: ["true"], effect: read }
  other: { command: ["true"], effect: read, sandbox: { open_files: 99 } }
  shut:  { command: ["true"], effect: read, sandbox: { read: ["."] } }
agents:
  a: { plan: [ { id: p, tool: pay }, { id: o, tool: open }, { id: s, tool: shut }, { id: t, tool: other } ] }
"""
    require(sandbox_features(), "files")
    note = "tools: the programs of %s can write the store and this file"
    policies = "policies: [ { tools: [pay], action: require_approval } ]"
    cases = [("", "", None), ("", ", approval: required", "`open`, `other`"),
             ("", ", approval: \"${ .args.n > 1 }\"", "`open`, `other`, `pay`"), (policies, "", "`open`, `other`, `pay`")]
    with home() as h:
        for rules, approval, named in cases:
            (h.path / "a.yaml").write_text(agents % (rules, approval))
            result = expect(h.run("check", "a.yaml"), 0)
            if named is None:
                assert "can write the store" not in result.err, result
            else:
                assert "a.yaml: " + note % named in result.err, result
                notes = expect(h.run("check", "a.yaml", "--json"), 0).json()["notes"]
                assert [n["path"] for n in notes if "can write the store" in n["message"]] == ["tools"], notes
            result = expect(Server(h, "a.yaml").stop(), 0)
            assert ("warning: a.yaml: tools: the programs of" in result.err) == (named is not None), result
        # Programs of one file could bypass an approval of another file.
        (h.path / "a.yaml").write_text(agents % ("", ""))
        (h.path / "b.yaml").write_text("aetheris: 1\ntools: { ask: { native: echo, approval: required } }\n"
                                       "agents: { b: { plan: [ { id: a, tool: ask } ] } }\n")
        result = expect(h.run("check", "b.yaml", "a.yaml"), 0)
        assert "a.yaml: " + note % "`open`, `other`, `pay`" in result.err and "b.yaml: tools:" not in result.err, result


@test
def check_reports_an_mcp_server_whose_program_could_bypass_approvals():
    agents = AGENTS.replace("attack:", "attack_:").replace("tool: attack,", "tool: attack_,") % ", sandbox: { read: [.] }"
    server = '  s: { mcp: { command: ["python3", "-B", "mcp_server.py", "--journal", "said/journal", "--tools", "said/tools.json"]%s } }\n'
    require(sandbox_features(), "files")
    for more, named in (("", True), (", sandbox: { read: [mcp_server.py], write: [said] }", False)):
        with serving_mcp(agents.replace("tools:\n", "tools:\n" + server % more), {}) as s:
            result = s.h.run("check", "agents.yaml", "--store", f"sqlite:{s.h.store}")
            assert ("tools: the programs of `s` can write the store" in result.err) == named, result


@test
def doctor_reports_the_sandbox_features_of_this_machine():
    can = sandbox_features()
    assert set(can) == {"files", "landlock_abi", "network", "processes", "root", "signals", "tracing"}, can
    assert can["root"] == (os.geteuid() == 0), can
    with home() as h:
        result = expect(h.run("doctor", "--sandbox"), 0)
        assert "Landlock" in result.out and ("runs as root" in result.out) == can["root"], result


if __name__ == "__main__":
    sys.exit(run_or_skip("tool_limits_sandbox", TESTS))
