// Messages and signals that a job sends to another one: delivered once, failures of which are
// definite.
#include <optional>
#include <string>
#include <utility>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

const JobId kReceiver("receiver");

// A job that sends this with a tool job:send, after a call of `do`.
std::shared_ptr<const engine::Plan> sender(std::string_view args) {
  const Value graph =
      json("{'schema':1, 'nodes': [{'id':'s', 'kind':'tool', 'tool':'job:send', 'args':" +
           std::string(args) +
           "}], 'output':'${ .steps.s }', 'tools': {'job:send': {'effect':'idempotent', "
           "'sends':true, 'on_in_doubt':'resend', 'timeout':'30s', 'grace':'30s', "
           "'dedupe_window':'unlimited', 'version':'0123456789abcdef', 'retry':{'max_attempts':3, "
           "'initial_backoff':'1s', 'max_backoff':'10s', 'multiplier':2, "
           "'retry_on':['unknown_outcome']}}}}");
  auto compiled = engine::Plan::compile(graph);
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

constexpr std::string_view kReceives =
    "[{'id':'m', 'kind':'wait', 'wait':{'type':'message', 'channel':'c'}},"
    " {'id':'w', 'kind':'wait', 'needs':['m'], 'wait':{'type':'message', 'channel':'c'}}]";

struct Jobs {
  explicit Jobs(const WorkerFixture::Setup& setup = {.owned = true}) : worker(env, "w", setup) {
    worker.runtime->start();
  }
  void create(const JobId& id, std::shared_ptr<const engine::Plan> plan) {
    NewJobRequest request;
    request.job = id;
    request.agent = "agent";
    request.plan = std::move(plan);
    auto made = env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    env.loop.run_ready();
  }
  Runtime::JobSnapshot read(const JobId& id) {
    auto read = env.loop.await<Result<Runtime::JobSnapshot>>(
        [&](auto done) { worker.runtime->read(id, std::move(done)); });
    AE_CHECK(read.has_value(), read ? "" : read.error().message);
    return *std::move(read);
  }
  // How the job of this sender ends: its status, and its result or the code of its failure.
  std::string end_of(std::string_view args) {
    create(kJob, sender(args));
    for (int i = 0; i < 3000 && !is_terminal(read(kJob).state.status); ++i) env.loop.advance(20ms);
    const engine::State state = read(kJob).state;
    return std::string(engine::to_text(state.status)) + " " +
           (state.error ? state.error->code : canonical(state.result));
  }

  TestEnvironment env;
  WorkerFixture worker;
};

AE_TEST(
    "job messages/a message reaches the wait of another job, with the key of the call as its id") {
  Jobs jobs;
  jobs.create(kReceiver, plan("read", kReceives));
  EXPECT_EQ(jobs.end_of("{'job':'receiver', 'to':{'channel':'c'}, 'payload':{'n':1}}"),
            R"(completed {"accepted":true})");
  const auto read = jobs.read(kReceiver);
  const auto messages = all_of<AgentMessage>(read.events);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(canonical(messages[0]->payload.value), R"({"n":1})");
  EXPECT_EQ(messages[0]->by, "job:job-1");
  const auto sent = jobs.read(kJob);
  EXPECT_EQ(messages[0]->message_id, sent.state.steps[0].call->external_key.text.string());
  EXPECT_EQ(read.state.waits.size(), 1u) << "the first wait is over, the second one is open";
}

AE_TEST("job messages/a signal is kept for a wait that is not open yet") {
  Jobs jobs;
  jobs.create(kReceiver, plan("read", kTwoWaits));
  EXPECT_EQ(jobs.end_of("{'job':'receiver', 'to':{'key':'k'}, 'payload':7}"),
            R"(completed {"accepted":true})");
  EXPECT_TRUE(jobs.read(kReceiver).state.early_signals.contains("k"));
}

AE_TEST("job messages/a job that does not exist or has ended is a definite failure") {
  Jobs jobs;
  jobs.create(kReceiver, plan("read",
                              "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', "
                              "'for':'1ms'}}]"));
  jobs.env.loop.advance(2s);
  EXPECT_EQ(jobs.end_of("{'job':'receiver', 'to':{'channel':'c'}, 'payload':1}"),
            "failed job_terminal");
  for (const std::string_view job : {"missing", "no such id"}) {
    Jobs others;
    EXPECT_EQ(
        others.end_of("{'job':'" + std::string(job) + "', 'to':{'channel':'c'}, 'payload':1}"),
        "failed not_found");
  }
}

AE_TEST("job messages/a wait for a person is not answered, nor a key of the runtime") {
  for (const std::string_view key :
       {"h", "approval/0123456789abcdef", "resolve/0123456789abcdef"}) {
    Jobs jobs;
    jobs.create(kReceiver,
                plan("read", "[{'id':'h', 'kind':'wait', 'wait':{'type':'human', 'key':'h'}}]"));
    EXPECT_EQ(jobs.end_of("{'job':'receiver', 'to':{'key':'" + std::string(key) +
                          "'}, 'payload':{'decision':'approve'}}"),
              "failed wait_mismatch")
        << key;
    EXPECT_EQ(jobs.read(kReceiver).state.waits.size(), 1u);
  }
}

AE_TEST("job messages/a signal for a wait that another answer has ended is a definite failure") {
  Jobs jobs;
  jobs.create(kReceiver, plan("read", kTwoWaits));
  auto answered = std::make_shared<std::optional<Result<Value>>>();
  jobs.worker.runtime->submit_request(
      kReceiver,
      {.id = "first",
       .body = engine::SignalRequest{.correlation_key = "j", .payload = json("'other'")}},
      [answered](Result<Value> result) { answered->emplace(std::move(result)); });
  jobs.env.loop.advance(1s);
  ASSERT_TRUE(answered->has_value() && (**answered).has_value());
  EXPECT_EQ(jobs.end_of("{'job':'receiver', 'to':{'key':'j'}, 'payload':7}"),
            "failed wait_mismatch");
}

// Fails the 1st call of the store, then the 2nd, …: before its work, and after it.
AE_TEST("job messages/a message is delivered once, whichever call of the store fails") {
  for (const Fault fault : {Fault::fail_before, Fault::fail_after}) {
    std::uint64_t hits = 0;
    for (std::uint64_t number = 1;; ++number) {
      Jobs jobs;
      jobs.create(kReceiver, plan("read", kReceives));
      std::uint64_t calls = 0;
      const auto id = std::make_shared<std::optional<Result<CreateResult>>>();
      NewJobRequest request;
      request.job = kJob;
      request.agent = "agent";
      request.plan = sender("{'job':'receiver', 'to':{'channel':'c'}, 'payload':1}");
      jobs.worker.runtime->create(
          request, [&jobs, &calls, id, number, fault](Result<CreateResult> made) {
            id->emplace(std::move(made));
            jobs.worker.script = [&calls, number, fault](const store::Call&) {
              return ++calls == number ? fault : Fault::none;
            };
          });
      for (int i = 0; i < 12; ++i) jobs.env.loop.advance(1s);
      jobs.worker.script = [](const store::Call&) { return Fault::none; };
      ASSERT_TRUE(id->has_value() && (**id).has_value());
      const auto sent = jobs.read(kJob);
      ASSERT_EQ(engine::to_text(sent.state.status), "completed") << number;
      ASSERT_EQ(all_of<AgentMessage>(jobs.read(kReceiver).events).size(), 1u) << number;
      if (calls < number || number > 25) break;
      hits = number;
    }
    EXPECT_GT(hits, 4u);
  }
}

AE_TEST("job messages/a worker that is suspended before its request sends nothing afterwards") {
  for (const bool held : {false, true}) {
    Jobs jobs({.seed = 1, .delay = 300s});
    WorkerFixture second(jobs.env, "second", {.seed = 1'000'001});
    // A held receiver runs a call of `do`; its inbox gets the message.
    jobs.create(kReceiver,
                plan("read", held ? "[{'id':'a', 'kind':'tool', 'tool':'do'}]" : kReceives));
    bool is_suspended = false;
    jobs.worker.script = [&](const store::Call& call) {
      const bool sends =
          held ? call.method == Method::put_inbox
               : call.method == Method::commit && !call.is_leased && call.number_of_method > 4;
      is_suspended = is_suspended || sends;
      if (!is_suspended) return Fault::none;
      const bool lost = call.method == Method::heartbeat || call.method == Method::claim;
      return lost ? Fault::fail_before : Fault::delay;
    };
    jobs.create(kJob, sender("{'job':'receiver', 'to':{'channel':'c'}, 'payload':1}"));
    jobs.env.loop.advance(5s);
    ASSERT_TRUE(is_suspended);
    ASSERT_TRUE(second.submit({.id = "c", .body = engine::CancelRequest{}}));
    // It ends the sender, and does not send.
    second.script = [](const store::Call& call) {
      return call.method == Method::put_inbox ? Fault::fail_before : Fault::none;
    };
    second.runtime->start();
    for (int i = 0; i < 200 && second.status() != "cancelled"; ++i) jobs.env.loop.advance(1s);
    ASSERT_EQ(second.status(), "cancelled");
    const auto received = [&] {
      const auto read = jobs.env.loop.await<Result<Runtime::JobSnapshot>>(
          [&](auto done) { second.runtime->read(kReceiver, std::move(done)); });
      return all_of<AgentMessage>(read->events).size() + read->inbox.size();
    };
    ASSERT_EQ(received(), 0u);
    jobs.env.loop.advance(300s);  // the request reaches the store
    EXPECT_EQ(received(), 0u) << "of a job that has ended";
  }
}

}  // namespace
}  // namespace ae::runtime::testing
