#!/usr/bin/env python3
"""Child jobs: plan nodes, maps and tools that create jobs of other agents, and wait for them.

A parent gets the result of its child, or its failure. Code starts children, and jobs send to each other, while the server
and the worker are killed. A process killed at every failpoint creates each child once and calls
each tool once. A parent that is cancelled cancels its children and ends after them. Its view shows which child it waits for.

  children.py [WORDS]   only tests whose name contains WORDS
"""
import json
import signal
import sys
import time

sys.dont_write_bytecode = True
from shared.code_world import CodeWorld  # noqa: E402
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.program import ROOT, TESTING_BIN  # noqa: E402

AGENTS = r"""
aetheris: 1
tools:
  look: { agent: research, description: Look something up }
  apart: { agent: research, detached: true, labels: { from: parent } }
  note:
    command: ["sh", "-c", "echo $AETHERIS_IDEMPOTENCY_KEY >> notes.txt; echo noted"]
    effect: idempotent
  lost: { native: doubt, effect: at_most_once }
  fail: { native: fail, effect: read }
  hold:
    command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo held"]
    effect: idempotent
    timeout: 60s
  undo:
    command: ["sh", "-c", "cat >> undone.txt; echo >> undone.txt; echo undone"]
    effect: idempotent
  mark:
    command: ["sh", "-c", "cat >> marks.txt; echo >> marks.txt; echo marked"]
    effect: idempotent
    compensate: { tool: undo, args: { of: "${ .args.of }" } }
agents:
  research:
    input_schema: { type: object, required: [topic], properties: { topic: { type: string } } }
    plan: [ { id: n, tool: note } ]
    output: { about: "${ .input.topic }", note: "${ .steps.n }" }
  one:
    plan: [ { id: child, agent: research, input: { topic: "${ .input.topic }" } } ]
    output: "${ .steps.child }"
  by_tool:
    plan: [ { id: child, tool: look, args: { topic: tides } } ]
    output: "${ .steps.child.about }"
  fan:
    plan: [ { id: each, map: "${ .input.topics }", max_parallel: 4, do: { agent: research, input: { topic: "${ .item }" } } } ]
    output: "${ .steps.each | map(.about) }"
  apart: { plan: [ { id: child, tool: apart, args: { topic: tides } } ], output: "${ .steps.child }" }
  fails: { plan: [ { id: f, tool: fail, args: { code: no_money, message: "the account is empty" } } ] }
  fan_of_failed:
    plan: [ { id: each, map: "${ .input.topics }", on_item_error: collect, do: { agent: fails, input: {} } } ]
  parent_of_failed: { plan: [ { id: child, agent: fails, input: {} } ] }
  doubts: { plan: [ { id: d, tool: lost, args: { message: "lost" } } ] }
  parent_of_doubt: { plan: [ { id: child, agent: doubts, input: {} } ] }
  waits: { plan: [ { id: w, wait: { type: signal, key: go } } ], output: "${ .steps.w }" }
  parent_of_waiting: { plan: [ { id: child, agent: waits, input: {} } ], output: "${ .steps.child }" }
  holds: { plan: [ { id: h, tool: hold } ], output: "${ .steps.h }" }
  marks: { plan: [ { id: m, tool: mark, args: { of: child } }, { id: w, needs: [m], wait: { type: signal, key: go } } ] }
  parent_of_marks:
    plan: [ { id: p, tool: mark, args: { of: parent } }, { id: child, needs: [p], agent: marks, input: {} } ]
  tells:
    plan: [ { id: say, tool: "job:send", args: { job: "${ .input.receiver }", to: { key: go }, payload: 5 } } ]
    output: "${ .steps.say }"
  deep: { plan: [ { id: child, agent: deep, input: {} } ] }
"""


def folder(program=TESTING_BIN):
    h = home(program)
    return h


def prepared(h):
    (h.path / "agents.yaml").write_text(AGENTS)
    return h


def start(h, agent, job, **inputs):
    words = [f"{name}:={json.dumps(value)}" for name, value in inputs.items()]
    return h.run("run", "agents.yaml", agent, "--job-id", job, *words)


def jobs(h):
    return h.run("jobs", "--json").json()["jobs"]


def view(h, job):
    return expect(h.run("job", job, "--json"), 0).json()


def lines_of(h, name):
    file = h.path / name
    return file.read_text().splitlines() if file.exists() else []


def a_node_gets_the_result_of_its_child():
    with folder() as h:
        prepared(h)
        done = expect(start(h, "one", "p", topic="tides"), 0)
        assert done.json() == {"about": "tides", "note": "noted"}, done
        assert len(lines_of(h, "notes.txt")) == 1
        child, = [j for j in jobs(h) if j["id"] != "p"]
        assert child["status"] == "completed" and child["agent"] == "research", child
        assert view(h, child["id"])["parent"]["job_id"] == "p", child
        children = view(h, "p")["children"]
        assert children["total"] == 1 and children["counts"] == {"completed": 1}, children
        for job in ("p", child["id"]):
            expect(h.run("verify", job), 0)
            expect(h.run("replay", job), 0)


def a_tool_and_a_map_create_children():
    with folder() as h:
        prepared(h)
        assert expect(start(h, "by_tool", "t"), 0).out.strip() == "tides"
        topics = [f"t{i}" for i in range(12)]
        assert expect(start(h, "fan", "m", topics=topics), 0).json() == topics
        assert len(lines_of(h, "notes.txt")) == 13
        assert view(h, "m")["children"]["counts"] == {"completed": 12}
        expect(h.run("verify", "m"), 0)


def a_child_of_invalid_input_is_not_created():
    with folder() as h:
        prepared(h)
        failed = start(h, "one", "p", topic=7)
        assert failed.code != 0 and "input" in failed.err, failed
        assert [j["id"] for j in jobs(h)] == ["p"]


def a_failed_child_fails_its_call_with_its_code():
    with folder() as h:
        prepared(h)
        failed = start(h, "parent_of_failed", "p")
        assert failed.code != 0 and "no_money" in failed.err, failed
        assert view(h, "p")["error"]["code"] == "no_money"


def a_failed_child_of_a_map_is_listed():
    with folder() as h:
        prepared(h)
        expect(start(h, "fan_of_failed", "m", topics=["a", "b"]), 0)
        assert view(h, "m")["children"]["counts"] == {"failed": 2}, view(h, "m")["children"]
        listed = expect(h.run("jobs", "--parent", "m", "--json"), 0).json()["jobs"]
        assert [job["status"] for job in listed] == ["failed", "failed"], listed
        assert sorted(job["id"] for job in listed) == sorted(job["id"] for job in jobs(h) if job["agent"] == "fails")


def a_child_is_shown_as_one_call():
    with folder() as h:
        prepared(h)
        expect(start(h, "fan", "m", topics=["a"]), 0)
        start(h, "parent_of_failed", "f")
        expect(start(h, "apart", "d"), 0)
        for parent, status in (("m", "completed"), ("f", "failed"), ("d", "detached")):
            child = expect(h.run("jobs", "--parent", parent, "--json"), 0).json()["jobs"][0]["id"]
            trace = expect(h.run("trace", parent, "--json"), 0).json()
            node = trace["nodes"][0]
            node = node["items"][0] if node["items"] else node
            shown = node["child"]
            assert (shown["id"], shown["status"]) == (child, status), shown
            assert status == "detached" or shown["duration_us"] > 0, shown
            assert trace["totals"]["tries"] == 1 and trace["totals"]["repeated"] == 0, trace["totals"]
            entries = expect(h.run("transcript", parent, "--json"), 0).json()["entries"]
            kinds = [entry["kind"] for entry in entries if entry["step_id"]]
            assert kinds == ["tool_call", "result"], kinds
            called, result = [entry for entry in entries if entry["step_id"]]
            assert called["child"]["id"] == child and result["child"] == {**called["child"], "status": status}, (called, result)
            assert status == "detached" or result["duration_us"] > 0, result
            for command in ("trace", "transcript"):
                text = expect(h.run(command, parent), 0).out
                assert f"{child}: {status}" in text, text
                assert "input_required" not in text and "question" not in text and "try 2" not in text, text


def a_detached_child_outlives_its_parent():
    with folder() as h:
        prepared(h)
        child = expect(start(h, "apart", "p"), 0).json()["job"]
        until(lambda: view(h, child)["status"] == "completed")
        assert view(h, child)["labels"] == {"from": "parent"}
        assert view(h, "p")["status"] == "completed"


def a_plan_signals_another_job():
    with folder() as h:
        prepared(h)
        expect(start(h, "waits", "w"), 4)
        assert expect(start(h, "tells", "t", receiver="w"), 0).json() == {"accepted": True}
        assert expect(h.run("run", "agents.yaml", "--only", "--job-id", "w"), 0).json() == 5
        expect(start(h, "tells", "again", receiver="w"), 0)  # the same answer again: it changes nothing
        assert start(h, "tells", "nobody", receiver="x").code != 0
        for job in ("w", "t"):
            expect(h.run("verify", job), 0)


def a_tree_has_a_greatest_depth():
    with folder() as h:
        prepared(h)
        failed = start(h, "deep", "p")
        assert failed.code != 0 and "tree_too_deep" in failed.err, failed
        assert len(jobs(h)) == 17, len(jobs(h))
        assert all(j["status"] == "failed" for j in jobs(h))
        tree = h.run("trace", "p", "--tree", "--json").json()
        assert [one["depth"] for one in tree["jobs"]] == list(range(17)) and tree["more"] is False, tree
        assert [one["parent"] for one in tree["jobs"][1:]] == [one["view"]["id"] for one in tree["jobs"][:-1]], tree


def a_tree_is_shown_with_each_job_below_its_parent():
    with folder() as h:
        prepared(h)
        expect(start(h, "fan", "m", topics=["a", "b"]), 0)
        children = [one["id"] for one in h.run("jobs", "--parent", "m", "--json").json()["jobs"]]
        assert len(children) == 2, children
        for command in ("trace", "transcript"):
            text = expect(h.run(command, "m", "--tree"), 0).out
            assert text.count("child job of m, level 1") == 2, text
            at = [text.index(f"job {job} ") for job in ("m", *children)]
            assert at == sorted(at), (at, text)
            tree = expect(h.run(command, "m", "--tree", "--json"), 0).json()
            assert [one["view"]["id"] for one in tree["jobs"]] == ["m", *children], tree
        expect(h.run("transcript", "m", "--tree", "--follow"), 2)
        expect(h.run("trace", "none", "--tree"), 3)


def a_parent_shows_the_child_that_it_waits_for():
    with folder() as h:
        prepared(h)
        waits = start(h, "parent_of_waiting", "p")
        assert waits.code == 4, waits
        child, = [j["id"] for j in jobs(h) if j["id"] != "p"]
        parent = view(h, "p")
        assert parent["status"] == "waiting" and parent["waits"][0]["job"] == child, parent
        assert parent["children"]["open"][0]["id"] == child, parent["children"]
        assert child in waits.err, waits
        expect(h.run("signal", child, "go", '"yes"'), 0)
        assert expect(start(h, "parent_of_waiting", "p"), 0).out.strip() == "yes"


def a_cancelled_parent_cancels_its_tree():
    with folder() as h:
        prepared(h)
        assert start(h, "parent_of_waiting", "p").code == 4
        child, = [j["id"] for j in jobs(h) if j["id"] != "p"]
        expect(h.run("cancel", "p"), 0)
        start(h, "parent_of_waiting", "p")
        assert view(h, child)["status"] == "cancelled" and view(h, "p")["status"] == "cancelled"
        for job in ("p", child):
            expect(h.run("verify", job), 0)


def a_child_is_compensated_before_its_parent():
    with folder() as h:
        prepared(h)
        assert start(h, "parent_of_marks", "p").code == 4
        expect(h.run("cancel", "p"), 0)
        start(h, "parent_of_marks", "p")
        assert view(h, "p")["status"] == "cancelled"
        assert [json.loads(line)["of"] for line in lines_of(h, "undone.txt")] == ["child", "parent"]


def an_ending_parent_names_the_unknown_calls_of_its_child():
    with folder() as h:
        prepared(h)
        parked = start(h, "parent_of_doubt", "p")
        assert parked.code == 4, parked
        child, = [j["id"] for j in jobs(h) if j["id"] != "p"]
        listed = expect(h.run("jobs", "--in-doubt", "--json"), 0).json()["jobs"]
        assert child in [j["id"] for j in listed], listed
        expect(h.run("cancel", "p"), 0)
        start(h, "parent_of_doubt", "p")
        assert view(h, "p")["status"] == "cancelled"
        end = h.run("events", "p", "--json").json()["events"][-1]
        doubt, = end["payload"]["children_in_doubt"]
        assert doubt["job_id"] == child and len(doubt["idempotency_keys"]) == 1, end


def killed_processes_create_each_child_once():
    with folder() as h:
        prepared(h)
        topics = [f"t{i}" for i in range(20)]
        words = ["run", "agents.yaml", "fan", "--job-id", "m", f"topics:={json.dumps(topics)}"]
        for wait in (0.05, 0.1, 0.15, 0.2, 0.3):
            process = h.start(*words)
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert expect(h.run(*words), 0).json() == topics
        keys = lines_of(h, "notes.txt")
        assert len(set(keys)) == 20, "each child makes its call under one key"
        assert len(jobs(h)) == 21
        for job in jobs(h):
            assert job["status"] == "completed", job
            expect(h.run("verify", job["id"]), 0)


def a_retry_keeps_the_results_of_children():
    with folder() as h:
        prepared(h)
        text = AGENTS.replace("  deep:", """  two:
    plan:
      - { id: child, agent: research, input: { topic: tides } }
      - { id: then, tool: note, needs: [child], args: { x: "a ${ .input.missing.member }" } }
  deep:""")
        (h.path / "agents.yaml").write_text(text)
        assert start(h, "two", "p").code != 0
        (h.path / "agents.yaml").write_text(text.replace(".input.missing.member", ".job.id"))
        expect(h.run("retry", "p", "agents.yaml", "--job-id", "q"), 0)
        assert len([j for j in jobs(h) if j["agent"] == "research"]) == 1


CODE = """
from aetheris import agent

@agent(uses=["agent:adds", "job:send"])
async def asks(ctx, input):
    children = [ctx.start("adds", {"n": n, "parent": ctx.job.id}) for n in range(3)]
    await ctx.send(children[0].id, {"channel": "in"}, 10)
    first = await ctx.receive("out")
    return [first, [await child for child in children]]

@agent(uses=["job:send"])
def adds(ctx, input):
    total = input["n"] + ctx.receive("in")
    if input["n"] == 0:
        ctx.send(input["parent"], {"channel": "out"}, "first")
    return total
"""


def code_continues_with_its_children_after_kills():
    env = {"PYTHONPATH": str(ROOT / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1"}
    with CodeWorld([sys.executable, "-m", "aetheris", "agent.py"], {"agent.py": CODE}, env) as world:
        def children():
            found = world.request("/api/jobs?parent=p")
            return found["jobs"] if found else []

        def restart():
            world.kill_server()
            world.kill_worker()
            world.start_server()
            world.start_worker()
        world.start_server()
        world.start_worker()
        world.create("asks", {}, "p")
        until(lambda: len(children()) == 3)
        restart()
        until(lambda: sorted(job["status"] for job in children()) == ["completed", "waiting", "waiting"])
        waiting = [job["id"] for job in children() if job["status"] == "waiting"]
        restart()
        for job in waiting:
            until(lambda job=job: world.request(f"/api/jobs/{job}/message",
                                                {"channel": "in", "payload": 100, "message_id": "m"}))
        world.kill_server()
        world.start_server()
        done = world.reaches("p", "completed", "failed", "parked")
        assert done["result"] == ["first", [10, 101, 102]], (done, world.output())
        assert done["children"]["counts"] == {"completed": 3}, done["children"]
        for job in ["p", *waiting]:
            world.verify(job)


TESTS = [a_node_gets_the_result_of_its_child, a_tool_and_a_map_create_children, a_child_of_invalid_input_is_not_created,
         a_failed_child_fails_its_call_with_its_code, a_failed_child_of_a_map_is_listed, a_child_is_shown_as_one_call,
         a_detached_child_outlives_its_parent, a_plan_signals_another_job, a_tree_has_a_greatest_depth,
         a_tree_is_shown_with_each_job_below_its_parent,
         a_parent_shows_the_child_that_it_waits_for, a_cancelled_parent_cancels_its_tree,
         a_child_is_compensated_before_its_parent, an_ending_parent_names_the_unknown_calls_of_its_child,
         killed_processes_create_each_child_once, a_retry_keeps_the_results_of_children,
         code_continues_with_its_children_after_kills]

if __name__ == "__main__":
    sys.exit(run_tests("children", TESTS, " ".join(sys.argv[1:])))
