// Tests that pages equal the whole: lists of steps and single steps the trace, pages of events the
// log, conversations the requests that were sent.
#include <fmt/core.h>

#include <map>
#include <set>
#include <span>

#include "engine/fixtures/dice_test.h"
#include "engine/fixtures/random_plan_test.h"
#include "engine/fixtures/random_walk_test.h"
#include "engine/fixtures/random_world_test.h"
#include "engine/fork/fork.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/conversation.h"
#include "inspect/event_page.h"
#include "inspect/fork_preview.h"
#include "inspect/json_patch.h"
#include "inspect/step_list.h"
#include "inspect/summary.h"
#include "inspect/trace.h"
#include "inspect/trace_record.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

StepIndex page_index(const std::vector<Event>& log) {
  StepIndex index;
  for (const Event& event : log) index.add(event);
  return index;
}

// The events with these seqs.
std::vector<Event> selected(const std::vector<Event>& log, std::vector<std::uint64_t> seqs) {
  const std::set<std::uint64_t> wanted(seqs.begin(), seqs.end());
  std::vector<Event> events;
  for (const std::uint64_t seq : wanted) events.push_back(log[seq - 1]);
  return events;
}

Value list(const JobFixture& job, StepQuery query) {
  const auto page = list_steps(StepTree(job.state), page_index(job.log), query);
  EXPECT_TRUE(page) << page.error().message;
  return page ? *page : Value();
}

// ---------------------------------------------------------------- steps

// Each row of the list below `parent` equals the node of the trace, and so does the single step.
void expect_same_as_trace(const JobFixture& job, const StepIndex& index, const std::string& parent,
                          const Value& nodes) {
  StepQuery query{.parent = parent, .limit = 10'000};
  const auto page = list_steps(StepTree(job.state), index, query);
  ASSERT_TRUE(page) << page.error().message;
  std::map<std::string, Value> rows;
  for (const Value& row : (*page)["steps"].items()) {
    rows.emplace(std::string(row.text("step_id")), row);
  }
  for (const Value& node : nodes.items()) {
    const std::string id(node.text("step_id"));
    ASSERT_TRUE(rows.contains(id)) << canonical(node);
    const Value& row = rows.at(id);
    for (const char* name :
         {"status", "phase", "world", "role", "kind", "path", "tool", "item", "turn", "turn_call",
          "started_at", "finished_at", "duration_us", "node_id"}) {
      if (node.text("role") != "node" && std::string_view(name).ends_with("_at")) continue;
      if (node.text("role") != "node" && std::string_view(name) == "duration_us") continue;
      EXPECT_EQ(row[name], node[name]) << name << " of " << canonical(node);
    }
    EXPECT_EQ(row["tries"], node["try"]);
    if (!node["error"].is_null()) {
      EXPECT_EQ(row["error"]["code"], node["error"]["code"]);
    }
    EXPECT_EQ(row["parent"], parent.empty() ? Value() : Value(parent));
    const Step& step = **find_step(job.state, id);
    TraceRecord record;
    const std::vector<Event> events = selected(job.log, seqs_of(StepTree(job.state), index, step));
    for (const Event& event : events) record.add(event);
    const Value single =
        step_trace_view(job.state, record, step, world_of(StepTree(job.state), index, step));
    EXPECT_EQ(single, node.with("items", Value::array({})));
    expect_same_as_trace(job, index, id, node["items"]);
    expect_same_as_trace(job, index, id, node["probes"]);
  }
}

AE_TEST("pages/the rows of steps and single steps equal those of the trace") {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(20); ++seed) {
    SCOPED_TRACE(repeat(seed, "pages.the rows of steps*"));
    Dice dice(seed);
    const Value graph = random_plan(dice, FailureMode::ends);
    JobFixture job(compiled(graph), {.input = random_input(dice)});
    RandomWorld world(FailureMode::ends);
    StepIndex index;
    std::size_t indexed = 0;
    for (int i = 0; i < 400 && advance_randomly(job, world, dice); ++i) {
      if (i % 5 != 0) continue;
      for (; indexed < job.log.size(); ++indexed) index.add(job.log[indexed]);
      expect_same_as_trace(job, index, "", trace_view(job.state, job.log)["nodes"]);
      if (::testing::Test::HasFailure()) return;
    }
    for (; indexed < job.log.size(); ++indexed) index.add(job.log[indexed]);
    expect_same_as_trace(job, index, "", trace_view(job.state, job.log)["nodes"]);
  }
}

AE_TEST("pages/the turns of a loop are listed below it, with the calls of each turn") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "nope"}}));
  job.ok("chat/0/0", "'found'").ok("chat/1", text_answer("Done"));
  expect_same_as_trace(job, page_index(job.log), "", trace_view(job.state, job.log)["nodes"]);
  const Value turns = list(job, {.parent = job.step("chat").id.text.string()});
  EXPECT_EQ(turns["total"], Value(2));
  EXPECT_EQ(turns["by_status"], json("{'done': 2}"));
  EXPECT_EQ(turns["steps"].items()[0]["children"], json("{'by_status': {'done': 1}, 'total': 1}"));
}

AE_TEST("pages/steps are filtered by status and change, and pages join to the whole list") {
  JobFixture job(
      "[{'id': 'm', 'kind': 'map', 'over': [1, 2, 3, 4, 5], 'on_item_error': 'collect',"
      "  'max_parallel': 5, 'do': {'tool': 'look', 'args': {'q': '${ .item }'}}}]");
  job.claim().ok("m/0").fails("m/1").ok("m/2").ok("m/3");
  const std::string map = job.step("m").id.text.string();
  const Value all = list(job, {.parent = map});
  EXPECT_EQ(all["total"], Value(5));
  EXPECT_EQ(all["by_status"], json("{'done': 3, 'failed': 1, 'running': 1}"));
  const Value failed = list(job, {.parent = map, .statuses = {"failed"}});
  ASSERT_EQ(failed["steps"].size(), 1U);
  EXPECT_EQ(failed["steps"].items()[0]["item"], Value(1));
  EXPECT_EQ(failed["steps"].items()[0]["error"], json("{'code': 'http_400'}"));
  std::vector<Value> joined;
  std::string after;
  for (int pages = 0; pages < 10; ++pages) {
    const Value page = list(job, {.parent = map, .after = after, .limit = 2});
    for (const Value& row : page["steps"].items()) joined.push_back(row);
    if (page["next"].is_null()) break;
    after = page["next"].as_string();
  }
  EXPECT_EQ(Value::array(joined), all["steps"]);
  const std::uint64_t seen = job.log.size();
  job.ok("m/4");
  const Value changed = list(job, {.parent = map, .changed_since = seen});
  ASSERT_EQ(changed["steps"].size(), 1U);
  EXPECT_EQ(changed["steps"].items()[0]["item"], Value(4));
  EXPECT_EQ(list(job, {.changed_since = seen})["steps"].size(), 1U)
      << "a change of its items counts";
  const auto none = list_steps(StepTree(job.state), page_index(job.log), {.parent = "nope"});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::not_found);
}

// ---------------------------------------------------------------- events

Value events_of(const JobFixture& job, const EventQuery& query) {
  EventPage page(job.state.job, query);
  std::vector<Event> log = job.log;
  if (query.descending) std::ranges::reverse(log);
  for (const Event& event : log) {
    if (!page.add(event)) break;
  }
  return std::move(page).take(job.log.size(), is_terminal(job.state.status));
}

AE_TEST("pages/events are listed forwards and backwards, and pages join to the whole list") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", text_answer("Done"));
  const Value all = events_of(job, {});
  EXPECT_EQ(all["events"].size(), job.log.size());
  EXPECT_EQ(all["total"], Value(job.log.size()));
  EXPECT_EQ(all["last_seq"], Value(job.log.size()));
  EXPECT_EQ(all["ended"], Value(true));
  std::vector<Value> joined;
  EventQuery query{.descending = true, .limit = 3};
  for (int pages = 0; pages < 100; ++pages) {
    const Value page = events_of(job, query);
    for (const Value& event : page["events"].items()) joined.push_back(event);
    if (page["next"].is_null()) break;
    query.before = static_cast<std::uint64_t>(page["next"].as_int());
  }
  std::ranges::reverse(joined);
  EXPECT_EQ(Value::array(joined), all["events"]);
  const Value middle = events_of(job, {.after = 2, .before = 6});
  EXPECT_EQ(middle["total"], Value(3));
  ASSERT_EQ(middle["events"].size(), 3U);
  EXPECT_EQ(middle["events"].items()[0]["seq"], Value(3));
  EXPECT_TRUE(middle["next"].is_null());
}

AE_TEST("pages/events are filtered by step and text, and slim events are cut") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'look', 'args': {'q': 1}},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'look', 'args': {'q': 2}}]");
  const std::string large(300, 'x');
  job.claim().ok("a", fmt::format("'{}'", large)).ok("b", "'needle'");
  const StepId a = job.step("a").id;
  const Value of_a = events_of(job, {.step = a.text.string()});
  EXPECT_GT(of_a["events"].size(), 3U);
  EXPECT_TRUE(of_a["total"].is_null());
  for (const Value& event : of_a["events"].items()) {
    EXPECT_EQ(event["payload"]["step_id"], Value(a.text));
  }
  const Value found = events_of(job, {.text = "needle"});
  ASSERT_GE(found["events"].size(), 1U);
  EXPECT_EQ(found["events"].items()[0]["payload"]["result"], Value("needle"));
  bool is_cut = false;
  const Value slim = events_of(job, {.slim = true});
  for (const Value& event : slim["events"].items()) {
    EXPECT_EQ(event.find("salts"), nullptr);
    EXPECT_FALSE(canonical(event).contains(large));
    is_cut = is_cut || event["payload"]["result"] == json("{'$cut': 302}");
  }
  EXPECT_TRUE(is_cut);
}

AE_TEST("pages/a page with a filter looks at a limited number of events, and pages join") {
  JobFixture job(
      "[{'id': 'm', 'kind': 'map', 'over': [1, 2, 3], 'max_parallel': 3, 'do': {'tool': 'look'}}]");
  job.claim();
  const Value all = events_of(job, {.type = "node_started"});
  for (const bool descending : {false, true}) {
    std::vector<Value> joined;
    EventQuery query{.descending = descending, .type = "node_started"};
    for (std::size_t pages = 0; pages <= job.log.size(); ++pages) {
      EventPage page(job.state.job, query, {}, 2);
      for (std::size_t i = 0; i < job.log.size(); ++i) {
        if (!page.add(job.log[descending ? job.log.size() - 1 - i : i])) break;
      }
      const bool has_next = page.has_next();
      const Value shown = std::move(page).take(job.log.size(), false);
      for (const Value& event : shown["events"].items()) joined.push_back(event);
      EXPECT_EQ(shown["next"].is_null(), !has_next);
      if (!has_next) break;
      const auto next = static_cast<std::uint64_t>(shown["next"].as_int());
      (descending ? query.before.emplace() : query.after) = next;
    }
    if (descending) std::ranges::reverse(joined);
    EXPECT_EQ(Value::array(joined), all["events"]);
  }
  EXPECT_GT(all["events"].size(), 1U);
}

// ---------------------------------------------------------------- conversations

Value conversation(const JobFixture& job, std::string_view step = "", std::uint64_t after = 0,
                   std::size_t limit = 100) {
  const StepIndex index = page_index(job.log);
  const StepTree tree(job.state);
  const auto found = Conversation::of(tree, step);
  EXPECT_TRUE(found) << found.error().message;
  if (!found) return {};
  TraceRecord record;
  const std::vector<Event> events = selected(job.log, found->seqs(index, after, limit));
  for (const Event& event : events) record.add(event);
  return found->page(record, index, after, limit);
}

// "role origin content" of each message.
std::vector<std::string> lines_of(const Value& page) {
  std::vector<std::string> lines;
  for (const Value& message : page["messages"].items()) {
    const Value& shown = message["error"].is_null() ? message["content"] : message["error"]["code"];
    lines.push_back(
        fmt::format("{} {} {}", message.text("role"), message.text("origin"), canonical(shown)));
  }
  return lines;
}
using Lines = std::vector<std::string>;

AE_TEST("pages/a conversation has the prompt, the answers and the results of calls") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "nope"}}));
  const Value started = conversation(job);
  EXPECT_EQ(started["live"], Value(true));
  EXPECT_EQ(lines_of(started), (Lines{R"(system prompt "Be kind")", R"(user prompt "Hello")",
                                      R"(assistant answer "")"}))
      << "the first call has no result yet";
  job.ok("chat/0/0", "'found'").ok("chat/1", text_answer("Done"));
  const Value all = conversation(job);
  EXPECT_EQ(lines_of(all),
            (Lines{R"(system prompt "Be kind")", R"(user prompt "Hello")", R"(assistant answer "")",
                   R"(tool call "found")", R"(tool call "tool_not_granted")",
                   R"(assistant answer "Done")"}));
  EXPECT_EQ(all["live"], Value(false));
  EXPECT_EQ(all["node_id"], Value("chat"));
  EXPECT_EQ(all["steps"].size(), 1U);
  EXPECT_EQ(all["messages"].items()[3]["call_id"], Value("a"));
  EXPECT_EQ(all["messages"].items()[4]["call_id"], Value("b"));
  EXPECT_EQ(all["messages"].items()[5]["usage"]["input_tokens"], Value(5));
  EXPECT_EQ(all["messages"].items()[5]["turn"], Value(1));
  for (const Value& message : all["messages"].items()) {
    ASSERT_TRUE(message["seq"].is_integer()) << canonical(message);
    const Event& event = job.log[static_cast<std::size_t>(message["seq"].as_int()) - 1];
    EXPECT_EQ(message["at"], Value(to_text(event.created_at)));
  }
}

AE_TEST("pages/the conversation of a thread has the messages of both sides") {
  JobFixture job = loop_job(", 'thread': true");
  job.claim().ok("chat/0", text_answer("Hi")).message("thread", "'More'", "m1");
  job.ok("chat/1", text_answer("Yes"));
  const Value all = conversation(job);
  EXPECT_EQ(lines_of(all), (Lines{R"(system prompt "Be kind")", R"(user prompt "Hello")",
                                  R"(assistant answer "Hi")", R"(user prompt "More")",
                                  R"(assistant answer "Yes")"}));
  EXPECT_EQ(all["live"], Value(true));
}

AE_TEST("pages/messages keep their numbers while a conversation grows, and pages join") {
  JobFixture job = loop_job(", 'repair': 1, 'schema': {'type': 'object'}");
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look"}}));
  const Value early = conversation(job);
  job.ok("chat/0/0", "1").ok("chat/1", text_answer("no JSON"));
  job.ok("chat/2", text_answer("{}"));
  ASSERT_EQ(job.state.status, JobStatus::completed) << job.log_text();
  const Value all = conversation(job);
  const auto of_early = early["messages"].items();
  for (std::size_t i = 0; i < of_early.size(); ++i) {
    EXPECT_EQ(all["messages"].items()[i]["n"], of_early[i]["n"]);
    EXPECT_EQ(all["messages"].items()[i]["content"], of_early[i]["content"]);
  }
  EXPECT_EQ(all["messages"].items()[5].text("origin"), "repair");
  EXPECT_TRUE(all["messages"].items()[5]["content"].is_string());
  std::vector<Value> joined;
  std::uint64_t after = 0;
  for (int pages = 0; pages < 20; ++pages) {
    const Value page = conversation(job, "", after, 2);
    for (const Value& message : page["messages"].items()) joined.push_back(message);
    if (page["next"].is_null()) break;
    after = static_cast<std::uint64_t>(page["next"].as_int());
  }
  EXPECT_EQ(Value::array(joined), all["messages"]);
}

AE_TEST("pages/the request of a turn equals the request that was sent") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look"}}));
  job.ok("chat/0/0", "'found'");
  const Value sent = request(job, "chat/1");
  const std::string step = job.step("chat/1").id.text.string();
  const std::uint64_t seq = page_index(job.log).find(job.step("chat/1").id)->first_try_seq;
  job.ok("chat/1", text_answer("Done"));
  const std::vector<Event> until(job.log.begin(),
                                 job.log.begin() + static_cast<std::ptrdiff_t>(seq));
  const auto then = fold(job.state.job, until, uncached_plan_source());
  ASSERT_TRUE(then);
  const auto view = sent_request_view(*then, step);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ((*view)["request"], sent);
  EXPECT_EQ((*view)["arguments_hash"], Value(job.state.hash_of((*view)["arguments"])));
  EXPECT_EQ((*view)["turn"], Value(1));
}

AE_TEST("pages/a step that calls no model has no conversation") {
  JobFixture job("[{'id': 'a', 'kind': 'tool', 'tool': 'look'}]");
  job.claim().ok("a");
  const Value none = conversation(job);
  EXPECT_EQ(none["messages"].size(), 0U);
  EXPECT_TRUE(none["step_id"].is_null());
  const StepTree tree(job.state);
  const auto refused = Conversation::of(tree, job.step("a").id.text.view());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::input_invalid);
}

// ---------------------------------------------------------------- timelines and changes of states

// "kind type node" of each entry.
std::vector<std::string> marks_of(const Value& page) {
  std::vector<std::string> marks;
  for (const Value& entry : page["entries"].items()) {
    marks.push_back(std::string(entry.text("kind")) + " " + std::string(entry.text("type")) + " " +
                    std::string(entry.text("node_id")));
  }
  return marks;
}
bool has_mark(const Value& page, const std::string& mark) {
  return std::ranges::count(marks_of(page), mark) > 0;
}

AE_TEST("pages/a timeline has attempts, waits, control requests and the end, and pages join") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'look'},"
      " {'id': 'w', 'kind': 'wait', 'wait': {'type': 'signal', 'key': 'go'}, 'needs': ['a']}]");
  job.claim().crash().ok("a").signal("go");
  ASSERT_EQ(job.state.status, JobStatus::completed) << job.log_text();
  const StepIndex index = page_index(job.log);
  const Value all = index.timeline().page(0, 100);
  EXPECT_EQ(all["seq"], Value(job.log.size()));
  EXPECT_TRUE(all["next"].is_null());
  EXPECT_EQ(marks_of(all).front(), "attempt job_running ");
  EXPECT_GE(std::ranges::count(marks_of(all), "attempt job_running "), 2);
  EXPECT_TRUE(has_mark(all, "wait wait_opened w"));
  EXPECT_TRUE(has_mark(all, "control wait_completed w"));
  EXPECT_EQ(marks_of(all).back(), "end job_completed ");
  std::vector<Value> joined;
  std::uint64_t after = 0;
  for (int pages = 0; pages < 100; ++pages) {
    const Value page = index.timeline().page(after, 2);
    for (const Value& entry : page["entries"].items()) joined.push_back(entry);
    if (page["next"].is_null()) break;
    after = static_cast<std::uint64_t>(page["next"].as_int());
  }
  EXPECT_EQ(Value::array(joined), all["entries"]);
  for (const Value& entry : joined) {
    const Event& event = job.log[static_cast<std::size_t>(entry["seq"].as_int()) - 1];
    EXPECT_EQ(entry["type"], Value(event_name(event)));
    EXPECT_EQ(entry["at"], Value(to_text(event.created_at)));
  }
}

AE_TEST("pages/a timeline has the failures of calls and nodes") {
  JobFixture job("[{'id': 'a', 'kind': 'tool', 'tool': 'look'}]");
  job.claim().fails("a");
  const Value page = page_index(job.log).timeline().page(0, 100);
  EXPECT_TRUE(has_mark(page, "failure tool_invocation_finished ")) << "it names the step only";
  EXPECT_TRUE(has_mark(page, "failure node_finished a"));
  EXPECT_TRUE(has_mark(page, "end job_failed a")) << canonical(page);
}

Value changed(const Value& target, std::span<const std::string> path, const Value& change) {
  const std::string_view op = change.text("op");
  if (path.empty()) return change["value"];
  const bool is_last = path.size() == 1;
  if (target.is_array()) {
    std::vector<Value> items(target.items().begin(), target.items().end());
    const auto at = items.begin() + std::stol(path.front());
    if (!is_last) {
      *at = changed(*at, path.subspan(1), change);
    } else if (op == "add") {
      items.insert(at, change["value"]);
    } else {
      EXPECT_EQ(*at, change["before"]);
      if (op == "remove") items.erase(at);
      if (op == "replace") *at = change["value"];
    }
    return Value::array(std::move(items));
  }
  std::vector<Member> members;
  for (const auto& [name, value] : target.members()) {
    if (name != path.front()) {
      members.emplace_back(name, value);
    } else if (!is_last) {
      members.emplace_back(name, changed(value, path.subspan(1), change));
    } else {
      EXPECT_EQ(value, change["before"]);
      if (op == "replace") members.emplace_back(name, change["value"]);
    }
  }
  if (is_last && op == "add") members.emplace_back(path.front(), change["value"]);
  return Value::object(std::move(members));
}

// The names in a JSON Pointer.
std::vector<std::string> names_in(std::string_view pointer) {
  std::vector<std::string> names;
  while (!pointer.empty()) {
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    std::string& name = names.emplace_back();
    for (std::size_t i = 1; i < end; ++i) {
      const bool escaped = pointer[i] == '~';
      if (escaped) ++i;
      name += !escaped ? pointer[i] : pointer[i] == '1' ? '/' : '~';
    }
    pointer.remove_prefix(end);
  }
  return names;
}

void expect_patch(const Value& before, const Value& after) {
  const Value patch = json_patch(before, after);
  EXPECT_EQ(patch["capped"], Value(false));
  Value patched = before;
  for (const Value& change : patch["changes"].items()) {
    patched = changed(patched, names_in(change.text("path")), change);
  }
  EXPECT_EQ(canonical(patched), canonical(after)) << canonical(patch);
}

AE_TEST("pages/a patch leads from one value to the other") {
  const std::pair<const char*, const char*> cases[] = {
      {"{'a': 1}", "{'a': 1}"},
      {"1", "'x'"},
      {"{'a': 1, 'b': {'c': [1, 2]}}", "{'b': {'c': [2]}, 'd': null}"},
      {"{'x/y': 1, 'x~y': [1]}", "{'x/y': 2, 'x~y': [1, 2]}"},
      {"[1, 2, 3, 4]", "[1, 9, 4]"},
      {"[1, 4]", "[1, 2, 3, 4]"},
      {"[{'id': 'a', 'n': 1}, {'id': 'b'}]", "[{'id': 'c'}, {'id': 'a', 'n': 2}, {'id': 'd'}]"},
      {"[{'id': 'a'}, {'id': 'b', 'n': 1}]", "[{'id': 'b', 'n': 2}, {'id': 'a'}]"},
      {"[{'id': 'a'}, {'id': 'a'}]", "[{'id': 'a'}]"},
      {"[]", "[{'step_id': 's'}, 1]"}};
  for (const auto& [before, after] : cases) {
    SCOPED_TRACE(std::string(before) + " to " + after);
    expect_patch(json(before), json(after));
    expect_patch(json(after), json(before));
  }
  const Value patch =
      json_patch(json("{'steps': [{'step_id': 's', 'node_id': 'n', 'phase': 'x'}]}"),
                 json("{'steps': [{'step_id': 's', 'node_id': 'n', 'phase': 'y'}]}"));
  EXPECT_EQ(patch["changes"],
            json("[{'before': 'x', 'node_id': 'n', 'op': 'replace', 'path': '/steps/0/phase',"
                 "  'step_id': 's', 'value': 'y'}]"));
}

AE_TEST("pages/a patch has at most 1,000 changes") {
  std::vector<Value> many;
  for (std::size_t i = 0; i <= kChangesMax; ++i) many.emplace_back(std::uint64_t{i});
  const Value patch = json_patch(Value::array({}), Value::array(many));
  EXPECT_EQ(patch["capped"], Value(true));
  EXPECT_EQ(patch["changes"].size(), kChangesMax);
}

AE_TEST("pages/the changes between two events lead from one state to the other") {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(10); ++seed) {
    SCOPED_TRACE(repeat(seed, "pages.the changes between*"));
    Dice dice(seed);
    const Value graph = random_plan(dice, FailureMode::ends);
    JobFixture job(compiled(graph), {.input = random_input(dice)});
    RandomWorld world(FailureMode::ends);
    for (int i = 0; i < 100 && advance_randomly(job, world, dice); ++i) continue;
    const std::size_t end = job.log.size();
    Value before = state_view(job.folded(1));
    for (std::size_t at = 1; at <= end; at += 1 + end / 8) {
      const Value after = state_view(job.folded(at));
      const bool capped = json_patch(before, after)["capped"] == Value(true);
      if (!capped) expect_patch(before, after);
      if (!capped) expect_patch(after, before);
      if (::testing::Test::HasFailure()) return;
      before = after;
    }
  }
}

// ---------------------------------------------------------------- forks and summaries

AE_TEST("pages/a preview of a fork lists imported, run and repeated nodes") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'pay'},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'pay', 'needs': ['a']},"
      " {'id': 'c', 'kind': 'tool', 'tool': 'look', 'needs': ['b']}]");
  job.claim().ok("a");
  const std::uint64_t at = job.log.size();
  job.ok("b").fails("c");
  const auto fork = fork_at(job.state, job.log, at, uncached_plan_source());
  ASSERT_TRUE(fork) << fork.error().message;
  const Value preview = fork_preview(*fork, at);
  EXPECT_EQ(preview["at_seq"], Value(at));
  EXPECT_EQ(preview["imports"], json("{'items': 0, 'nodes': 1}"));
  EXPECT_EQ(preview["runs"], json("['b', 'c']"));
  ASSERT_EQ(preview["repeats"].size(), 1U);
  EXPECT_EQ(preview["repeats"].items()[0]["node_id"], Value("b"));
}

AE_TEST("pages/a summary has the error, the wait and the usage of the job") {
  JobFixture waits("[{'id': 'w', 'kind': 'wait', 'wait': {'type': 'signal', 'key': 'go'}}]");
  waits.claim();
  const Value waiting = summary_view(waits.state);
  EXPECT_EQ(waiting["waiting"],
            json("{'expires_at': null, 'node_id': 'w', 'reason': 'signal_awaited',"
                 " 'wait_type': 'signal'}"));
  EXPECT_EQ(waiting["kind"], Value("plan"));
  EXPECT_EQ(waiting["plan_hash"], Value(to_hex(waits.state.plan->hash)));
  EXPECT_EQ(waiting["progress"], json("{'done': 0, 'nodes': 1, 'turns': null}"));
  EXPECT_TRUE(waiting["ended_at"].is_null());
  JobFixture fails("[{'id': 'a', 'kind': 'tool', 'tool': 'look'}]");
  fails.claim().fails("a", "http_400");
  const Value failed = summary_view(fails.state);
  EXPECT_EQ(failed["error"], json("{'code': 'http_400', 'node_id': 'a'}"));
  EXPECT_EQ(failed["usage"]["tool_calls"], Value(1));
  EXPECT_TRUE(failed["ended_at"].is_string());
  EXPECT_EQ(summary_view(loop_job().state)["kind"], Value("loop"));
}

AE_TEST("pages/a summary has the first attempt's beginning and the number of a loop's turns") {
  JobFixture job = loop_job();
  EXPECT_TRUE(summary_view(job.state)["started_at"].is_null());
  EXPECT_EQ(summary_view(job.state)["progress"]["turns"], Value(0));
  job.claim();
  const auto begun = std::ranges::find(job.log, EventType::job_running, &Event::type);
  const Value started = to_text(begun->created_at);
  EXPECT_EQ(summary_view(job.state)["started_at"], started);
  job.ok("chat/0", tool_calls_answer({{"a", "look"}})).ok("chat/0/0", "1");
  job.after(std::chrono::seconds(1)).crash();
  EXPECT_EQ(summary_view(job.state)["started_at"], started) << "not of a later attempt";
  EXPECT_EQ(summary_view(job.state)["progress"]["turns"], Value(2));
}

}  // namespace
}  // namespace ae::engine::testing
