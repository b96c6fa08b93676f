// Human waits, early signals, channels. Signals and messages that arrive before their wait are
// kept, and delivered once.
#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

std::string human(std::string_view more = "") {
  return "[{'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k'" + std::string(more) +
         "}}, {'id':'a', 'kind':'tool', 'tool':'put', 'needs':['w']}]";
}

// ---------------------------------------------------------------- human waits

AE_TEST("human/an approval completes the wait and is its result") {
  JobFixture job(human());
  job.claim();
  EXPECT_EQ(job.status(), "waiting");
  job.signal("k", "{'decision':'approve', 'note':'fine'}");
  EXPECT_EQ(job.reply["delivered"], Value(true));
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "approved");
  EXPECT_EQ(job.step("w").result, json("{'decision':'approve', 'note':'fine'}"));
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("human/the answering user is recorded") {
  JobFixture job(human());
  job.claim().approve("w");
  EXPECT_EQ(job.last<WaitCompleted>().by, "ann");
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("human/a rejection fails the node, and no later node starts") {
  JobFixture job(human());
  job.claim().signal("k", "{'decision':'reject', 'note':'too much'}");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "rejected");
  EXPECT_EQ(job.state.error->code, "rejected");
  EXPECT_NE(job.state.error->message.find("too much"), std::string::npos);
  EXPECT_TRUE(job.sent.empty());
}

AE_TEST("human/with on_reject: continue the answer is the result") {
  JobFixture job(human(", 'on_reject':'continue'"));
  job.claim().reject("w").ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.step("w").result, json("{'decision':'reject'}"));
}

AE_TEST("human/an expired wait fails the node or continues") {
  JobFixture fails(human(", 'expires':'1h'"));
  fails.claim().after(2h);
  EXPECT_EQ(fails.state.error->code, "wait_expired");
  JobFixture continued(human(", 'expires':'1h', 'on_expire':'continue'"));
  continued.claim().after(2h).ok("a");
  EXPECT_EQ(continued.status(), "completed");
  EXPECT_EQ(continued.step("w").result, json("{'timed_out':true}"));
}

AE_TEST("human/an answer without a decision is invalid unless the wait accepts data") {
  JobFixture job(human());
  job.claim();
  const std::size_t events = job.log.size();
  for (const std::string_view payload : {"null", "{}", "'approve'", "{'decision':'maybe'}"}) {
    EXPECT_EQ(job.signal("k", payload).refused, Code::input_invalid) << payload;
  }
  EXPECT_EQ(job.log.size(), events);
  JobFixture data(human(", 'answer':'data'"));
  data.claim().signal("k", "{'name':'Ann'}");
  EXPECT_EQ(data.last<WaitCompleted>().outcome, "approved");
  EXPECT_EQ(data.step("w").result, json("{'name':'Ann'}"));
  JobFixture no(human(", 'answer':'data'"));
  EXPECT_EQ(no.claim().reject("w").state.error->code, "rejected");
}

AE_TEST("human/a second answer is a duplicate and returns the first") {
  JobFixture job(human());
  job.claim();
  const std::string id = job.open_request_id("w");
  job.answer_approval(id, "approve").answer_approval(id, "reject");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.reply["applied"], Value(false));
  EXPECT_EQ(job.reply["outcome"], "approved");
  job.answer_approval(id, "approve");
  EXPECT_EQ(job.reply["applied"], Value(true));
  EXPECT_EQ(job.answer_approval("0123456789abcdef", "approve").refused, Code::not_found);
}

// ---------------------------------------------------------------- early signals

constexpr std::string_view kLater =
    "[{'id':'a', 'kind':'tool', 'tool':'put'},"
    " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal', 'key':'k'}}]";

AE_TEST("early/an early signal is buffered and delivered in the commit that opens its wait") {
  JobFixture job(kLater);
  job.claim().signal_early("k", "{'n':1}", "s1");
  EXPECT_EQ(job.reply["buffered"], Value(true));
  const std::size_t before = job.log.size();
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.commits[job.commits.size() - 2], before) << "one commit";
  EXPECT_EQ(job.step("w").result, json("{'n':1}"));
  EXPECT_EQ(job.last<WaitCompleted>().signal_id, "s1");
  EXPECT_TRUE(job.last<WaitCompleted>().payload.is_null()) << "the payload is stored once";
  EXPECT_TRUE(job.last<JobCompleted>().undelivered.is_null());
  EXPECT_EQ(job.signal("k", "{'n':1}").reply["applied"], Value(true))
      << "and recognized afterwards";
}

AE_TEST("early/without buffer an early signal is a mismatch, with it an open wait completes") {
  JobFixture job(kLater);
  EXPECT_EQ(job.claim().signal("k").refused, Code::wait_mismatch);
  job.ok("a").signal_early("k", "2", "s1");
  EXPECT_EQ(job.reply["delivered"], Value(true));
  EXPECT_EQ(job.status(), "completed");
  job.signal_early("k", "2", "s1");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
}

AE_TEST("early/one signal is buffered per key, and a second one is reported as not applied") {
  JobFixture job(kLater);
  job.claim().signal_early("k", "1", "s1").signal_early("k", "1", "s1");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.count(EventType::agent_message), 1u);
  job.signal_early("k", "2", "s2");
  EXPECT_EQ(job.reply, json("{'applied':false,'buffered':true,'correlation_key':'k',"
                            "'duplicate':true,'payload':1}"));
  job.signal_early("k", "1", "s4");
  EXPECT_EQ(job.reply["applied"], Value(true)) << "the payload is the same";
  EXPECT_EQ(job.count(EventType::agent_message), 1u);
  job.signal_early("other", "3", "s3").ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.step("w").result, Value(1));
  EXPECT_EQ(job.last<JobCompleted>().undelivered.json(),
            json("[{'correlation_key':'other','signal_id':'s3'}]"));
}

AE_TEST("early/a crash between buffering and delivery neither loses nor repeats a signal") {
  JobFixture job(kLater);
  job.claim().signal_early("k", "7", "s1").crash();
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.step("w").result, Value(7));
  EXPECT_EQ(job.count(EventType::wait_completed), 1u);
}

AE_TEST("early/a signal that does not fit the wait stays undelivered") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'],"
      "  'wait':{'type':'human', 'key':'${ .steps.a }'}}]");
  job.claim()
      .signal_early("k", "{}", "s1")
      .signal_early("k", "{'decision':'approve'}", "s2", "signal");
  EXPECT_EQ(job.ok("a", "'k'").status(), "waiting");
  job.approve("w");
  EXPECT_EQ(job.last<JobCompleted>().undelivered.json().size(), 2u);
}

AE_TEST("early/an invalid early answer is rejected if the plan shows that its wait is human") {
  constexpr std::string_view kKeys[] = {"'k'", "'${ .input.x }'", "'${ .steps.first }'"};
  for (const std::string_view key : kKeys) {
    JobFixture job(
        "[{'id':'first', 'kind':'tool', 'tool':'look'},"
        " {'id':'a', 'kind':'tool', 'tool':'put', 'needs':['first']},"
        " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'human', 'key':" +
            std::string(key) + "}}]",
        {.input = "{'x':'k'}"});
    job.claim().ok("first", "'k'");
    const std::size_t before = job.log.size();
    EXPECT_EQ(job.signal_early("k", "{}", "s1").refused, Code::input_invalid) << key;
    EXPECT_EQ(job.signal_early("k", "{'decision':'perhaps'}", "s1", "human").refused,
              Code::input_invalid);
    EXPECT_EQ(job.log.size(), before);
    EXPECT_EQ(job.signal_early("other", "{}", "s2").refused, std::nullopt);
    EXPECT_EQ(job.signal_early("k", "{'decision':'approve'}", "s3").refused, std::nullopt);
    EXPECT_EQ(job.ok("a").status(), "completed");
  }
  JobFixture own(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'human'}}]");
  own.claim();
  EXPECT_EQ(own.signal_early(own.step("w").id.text, "{}", "s1").refused, Code::input_invalid);
  JobFixture data(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'],"
      "  'wait':{'type':'human', 'key':'k', 'answer':'data'}}]");
  EXPECT_EQ(data.claim().signal_early("k", "{}", "s1").refused, std::nullopt);
  // Two branches use one key; one of them accepts data.
  JobFixture either(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'v', 'kind':'wait', 'needs':['a'], 'when':'${ .steps.a }',"
      "  'wait':{'type':'human', 'key':'k'}},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'when':'${ .steps.a | not }',"
      "  'wait':{'type':'human', 'key':'k', 'answer':'data'}}]");
  EXPECT_EQ(either.claim().signal_early("k", "{}", "s1").refused, std::nullopt);
}

AE_TEST("early/a request that its open wait rejects is kept as undelivered") {
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k'}}]");
  job.claim();
  ControlRequest request{
      .id = "s1",
      .body =
          SignalRequest{.correlation_key = "k", .buffer = true, .payload = json("{'note':'hm'}")}};
  ASSERT_EQ(job.send_request(request).refused, Code::input_invalid);
  const auto kept = expire_request(job.state, request);  // it was accepted before the wait opened
  ASSERT_EQ(kept.size(), 1u);
  job.add(kept);
  EXPECT_TRUE(expire_request(job.state, request).empty()) << "once";
  // The same user sends a valid answer with the same id.
  std::get<SignalRequest>(request.body).payload = json("{'decision':'approve'}");
  EXPECT_EQ(job.send_request(request).status(), "completed");
  EXPECT_EQ(job.state.result, json("{'w':{'decision':'approve'}}"));
  EXPECT_EQ(job.last<JobCompleted>().undelivered.json(),
            json("[{'correlation_key':'k','signal_id':'s1'}]"));
  EXPECT_TRUE(expire_request(job.state, request).empty()) << "the job has ended";
}

AE_TEST("early/a request to an answered wait is kept as undelivered, a duplicate is not") {
  JobFixture job(
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}},"
      " {'id':'x', 'kind':'wait', 'wait':{'type':'signal', 'key':'other'}}]");
  job.claim().signal_early("k", "1", "s1");
  ControlRequest request{
      .id = "s1",
      .body = SignalRequest{.correlation_key = "k", .buffer = true, .payload = json("1")}};
  EXPECT_TRUE(expire_request(job.state, request).empty());
  request.id = "s2";
  ASSERT_EQ(expire_request(job.state, request).size(), 1u);
  job.add(expire_request(job.state, request));
  job.signal("other");
  EXPECT_EQ(job.last<JobCompleted>().undelivered.json(),
            json("[{'correlation_key':'k','signal_id':'s2'}]"));
}

AE_TEST("wait/a signal that was kept is a duplicate also when its job has ended") {
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'other'}}]");
  job.claim();
  const ControlRequest kept{
      .id = "s1",
      .body = SignalRequest{.correlation_key = "k", .buffer = true, .payload = json("1")}};
  job.send_request(kept);
  EXPECT_EQ(job.reply["buffered"], Value(true));
  job.cancel("enough");
  ASSERT_EQ(job.status(), "cancelled");
  job.send_request(kept);
  EXPECT_EQ(job.reply["duplicate"], Value(true)) << canonical(job.reply);
  const auto other = apply_request(
      job.state,
      {.id = "s2",
       .body = SignalRequest{.correlation_key = "k", .buffer = true, .payload = json("1")}},
      job.context());
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, Code::job_terminal);
}

AE_TEST("early/an early human answer counts and records its sender") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'human', 'key':'k'}}]");
  job.claim().send_request(
      {.id = "s1",
       .by = "bob",
       .body = SignalRequest{
           .correlation_key = "k", .buffer = true, .payload = json("{'decision':'approve'}")}});
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.last<WaitCompleted>().by, "bob");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "approved");
}

AE_TEST("early/approvals and resolutions cannot be answered in advance") {
  JobFixture job(kLater);
  job.claim();
  const std::string key = "approval/" + job.step("a").id.text;
  EXPECT_EQ(job.signal_early(key, "{'decision':'approve'}", "s1").refused, Code::wait_mismatch);
  EXPECT_EQ(job.signal_early("resolve/x", "1", "s2").refused, Code::wait_mismatch);
}

AE_TEST("early/a cancelled job lists its buffered signals") {
  JobFixture job(kLater);
  job.claim().signal_early("k", "1", "s1").cancel();
  job.ok("a");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.last<JobCancelled>().undelivered.json(),
            json("[{'correlation_key':'k','signal_id':'s1'}]"));
}

// ---------------------------------------------------------------- messages

constexpr std::string_view kTwoMessages =
    "[{'id':'a', 'kind':'tool', 'tool':'put'},"
    " {'id':'w', 'kind':'wait', 'wait':{'type':'message', 'channel':'c'}},"
    " {'id':'v', 'kind':'wait', 'needs':['a'], 'wait':{'type':'message', 'channel':'c'}}]";

AE_TEST("message/a message completes the wait on its channel with its payload") {
  JobFixture job(kTwoMessages);
  job.claim().message("c", "{'n':1}", "m1");
  EXPECT_EQ(job.reply["accepted"], Value(true));
  EXPECT_EQ(job.step("w").result, json("{'n':1}"));
  EXPECT_EQ(job.last<WaitCompleted>().wait_type, "message");
  EXPECT_EQ(job.step("v").phase, StepPhase::blocked);
}

AE_TEST("message/an accepted message that is late for the open wait is kept") {
  JobFixture job(
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'message', 'channel':'c', 'expires':'5s'}}]");
  job.claim();
  const Instant expires_at = job.state.waits.begin()->second.expires_at.value();
  const auto apply_at = [&](Instant checked_at) {
    job.now = checked_at;
    const ControlRequest request{.id = "m1",
                                 .by = "someone",
                                 .checked_at = checked_at,
                                 .body = MessageRequest{.channel = "c", .payload = Value(1)}};
    AcceptedRequest applied = apply_accepted(job.state, request, job.context());
    EXPECT_TRUE(applied.answer);
    return std::move(applied.events);
  };
  EXPECT_EQ(apply_at(expires_at - 1s).size(), 2u) << "recorded and delivered";
  const std::vector<EventBody> events = apply_at(expires_at + 1s);
  ASSERT_EQ(events.size(), 1u) << "recorded only";
  EXPECT_EQ(std::get<AgentMessage>(events[0]).message_id, "m1");
}

AE_TEST("message/messages are kept in order until a wait opens and are delivered once") {
  JobFixture job(kTwoMessages);
  job.claim().message("d", "0", "m0").message("c", "1", "m1").message("c", "2", "m2");
  job.message("c", "2", "m2");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  job.message("c", "3", "m3").crash();
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.step("w").result, Value(1));
  EXPECT_EQ(job.step("v").result, Value(2));
  EXPECT_EQ(job.last<JobCompleted>().undelivered.json(),
            json("[{'channel':'c','message_id':'m3'}, {'channel':'d','message_id':'m0'}]"));
  EXPECT_EQ(job.message("c", "3", "m3").reply["duplicate"], Value(true));
  EXPECT_EQ(job.message("c", "4", "m4").refused, Code::job_terminal);
}

AE_TEST("message/two waits on a channel that open together get one message each, in order") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'message', 'channel':'c'}},"
      " {'id':'v', 'kind':'wait', 'needs':['a'], 'wait':{'type':'message', 'channel':'c'}}]");
  job.claim().message("c", "1", "m1").ok("a");
  EXPECT_EQ(job.step("w").result, Value(1));
  EXPECT_EQ(job.status(), "waiting");
  job.message("c", "2", "m2");
  EXPECT_EQ(job.step("v").result, Value(2));
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("message/a message wait is not completed by a signal and may expire") {
  JobFixture job(
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'message', 'channel':'c', 'expires':'1h',"
      " 'on_expire':'continue'}}]");
  job.claim();
  EXPECT_EQ(job.signal(job.step("w").id.text, "1").refused, Code::wait_mismatch);
  EXPECT_EQ(job.message("", "1", "m").refused, Code::input_invalid);
  job.after(2h);
  EXPECT_EQ(job.state.result, json("{'w':{'timed_out':true}}"));
}

AE_TEST("message/an ending job rejects messages and lists those accepted before") {
  JobFixture job(kTwoMessages);
  job.claim().cancel();
  EXPECT_EQ(job.message("c", "1", "m1").refused, Code::job_terminal);
  const ControlRequest accepted{.id = "m1",
                                .body = MessageRequest{.channel = "c", .payload = Value(1)}};
  job.add(expire_request(job.state, accepted));
  job.ok("a");
  EXPECT_EQ(job.last<JobCancelled>().undelivered.json(),
            json("[{'channel':'c','message_id':'m1'}]"));
}

}  // namespace
}  // namespace ae::engine::testing
