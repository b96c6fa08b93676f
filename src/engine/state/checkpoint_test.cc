// A checkpoint with the tail of its log gives the same state as the whole log, at every prefix.
//
// Method: jobs with random plans in a random world. At each event of a log the state is
// written, read back, and folded to the end of the log. The bytes of two states are
// equal only if every field is.
#include "engine/state/checkpoint.h"

#include <bit>

#include "base/bytes.h"
#include "engine/fixtures/job_fixture_test.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

Hash hash_at(std::uint64_t seq) { return sha256(std::to_string(seq)); }

State whole_checkpoint(const JobFixture& job, std::size_t events) { return job.folded(events); }

// Folds from the checkpoint at `prefix` to `end`.
State continued(const JobFixture& job, const std::string& bytes, std::size_t prefix,
                std::size_t end) {
  auto restored = restore(job.state.job, prefix, bytes, uncached_plan_source());
  AE_CHECK(restored.has_value(), restored ? "" : restored.error().message);
  AE_CHECK(restored->head == hash_at(prefix));
  for (std::size_t i = prefix; i < end; ++i) {
    auto applied =
        apply(restored->state, job.log[i].body, job.log[i].created_at, uncached_plan_source());
    AE_CHECK(applied.has_value(), applied ? "" : applied.error().message);
  }
  return std::move(restored->state);
}

void expect_every_checkpoint(const JobFixture& job) {
  const State end = whole_checkpoint(job, job.log.size());
  const std::string bytes_at_end = checkpoint(end, Hash{});
  const Value view_at_end = state_view(end);
  for (std::size_t prefix = 2; prefix <= job.log.size(); ++prefix) {
    const State state = whole_checkpoint(job, prefix);
    const std::string bytes = checkpoint(state, hash_at(prefix));
    const auto back = restore(job.state.job, prefix, bytes, uncached_plan_source());
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_EQ(checkpoint(back->state, back->head), bytes) << "at event " << prefix;
    for (const Step& step : state.steps) {
      ASSERT_EQ(back->state.index_of(step.id), state.index_of(step));
    }
    ASSERT_EQ(state_view(back->state), state_view(state));
    const State tail = continued(job, bytes, prefix, job.log.size());
    ASSERT_EQ(checkpoint(tail, Hash{}), bytes_at_end) << "from event " << prefix;
    ASSERT_EQ(state_view(tail), view_at_end);
  }
}

JobFixture rich_job() {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':'${ .input.n }'}},
      {'id':'p', 'kind':'tool', 'tool':'pay', 'needs':['a'], 'args':{'n':'${ .steps.a }'}},
      {'id':'s', 'kind':'tool', 'tool':'pay', 'when':'${ .input.n > 5 }'},
      {'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2, 'needs':['a'],
       'do':{'tool':'once', 'args':{'i':'${ .index }'}}},
      {'id':'w', 'kind':'wait', 'needs':['m'],
       'wait':{'type':'signal','key':'k-${ .input.n }', 'expires':'9h'}}])",
                 {.more = "{'output':'${ .steps }'}",
                  .input = "{'n':1,'list':[4,5.5,-6],'deep':{'a':[null,true,false,1e-300]}}",
                  .deadline = 1000h});
  job.claim().fails("a", "connect").after(10s).ok("a", "'A'").crash();
  job.ok("m/1", "2.5").ok("m/0", "1").ok("m/2", "3").signal("k-1", "'go'");
  job.resolve("p", "happened", "'paid'");
  return job;
}

AE_TEST("checkpoint/a checkpoint and its tail give the state of the whole log, at every prefix") {
  const JobFixture job = rich_job();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  expect_every_checkpoint(job);
  JobFixture cancelled("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  cancelled.claim().crash().cancel("enough");
  expect_every_checkpoint(cancelled);
  JobFixture parked("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  parked.claim().unknown("a");
  expect_every_checkpoint(parked);
  JobFixture failed(
      "[{'id':'a', 'kind':'tool', 'tool':'risk'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  failed.claim().unknown("a").times_out("b");
  expect_every_checkpoint(failed);
}

AE_TEST("checkpoint/any changed byte makes a checkpoint invalid") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.claim();
  const std::string bytes = checkpoint(job.state, hash_at(job.state.seq));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(restore(job.state.job, job.state.seq, changed, uncached_plan_source())) << i;
    EXPECT_FALSE(restore(job.state.job, job.state.seq, bytes.substr(0, i), uncached_plan_source()));
  }
  EXPECT_FALSE(restore(JobId("other"), job.state.seq, bytes, uncached_plan_source()));
  EXPECT_FALSE(restore(job.state.job, job.state.seq + 1, bytes, uncached_plan_source()));
}

std::string big_endian(std::uint64_t bits) {
  std::string bytes;
  put_big_endian64(bits, bytes);
  return bytes;
}
std::string varint(std::uint64_t n) {
  std::string bytes;
  put_varint(n, bytes);
  return bytes;
}

AE_TEST("checkpoint/an invalid state is rejected even with a valid checksum") {
  constexpr std::int64_t kIntMax = (std::int64_t{1} << 53) - 1;
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]",
                 {.input = "{'key-a':1, 'key-b':5.5, 'most':9007199254740991}"});
  job.claim();
  const std::string bytes = checkpoint(job.state, hash_at(job.state.seq));
  const auto forged = [&](std::string_view from, std::string_view to) {
    std::string content = bytes.substr(0, bytes.size() - sizeof(Hash));
    const std::size_t at = content.find(from);
    AE_CHECK(at != content.npos, std::string(from));
    content.replace(at, from.size(), to);
    const Hash sum = sha256(content);
    content.append(reinterpret_cast<const char*>(sum.bytes.data()), sum.bytes.size());
    return restore(job.state.job, job.state.seq, content, uncached_plan_source()).has_value();
  };
  const std::string five = big_endian(std::bit_cast<std::uint64_t>(5.5));
  EXPECT_TRUE(forged("key-b", "key-c")) << "a valid change with a valid checksum is accepted";
  EXPECT_FALSE(forged("key-b", "key-a")) << "a key twice";
  EXPECT_FALSE(forged("key-a", "key-z")) << "keys out of order";
  EXPECT_FALSE(forged("key-b", "key-\xff")) << "no text";
  EXPECT_FALSE(forged(five, big_endian(0x7FF8000000000000))) << "no number";
  EXPECT_FALSE(forged(five, big_endian(0xFFF0000000000000))) << "an infinite number";
  EXPECT_FALSE(forged(varint(zig_zag(kIntMax)), varint(zig_zag(kIntMax + 1)))) << "too large";
}

AE_TEST("checkpoint/verify compares a checkpoint with the log") {
  const JobFixture job = rich_job();
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  const std::size_t at = job.log.size() / 2;
  input.checkpoint.emplace(at, checkpoint(whole_checkpoint(job, at), input.events[at - 1].hash));
  EXPECT_TRUE(verify(input, uncached_plan_source()).ok);
  // The state at another event, with a valid checksum.
  input.checkpoint->second = checkpoint(whole_checkpoint(job, at - 1), input.events[at - 1].hash);
  EXPECT_FALSE(verify(input, uncached_plan_source()).replay.ok);
  State other = whole_checkpoint(job, at);
  other.input = json("{'n':2}");
  input.checkpoint->second = checkpoint(other, input.events[at - 1].hash);
  EXPECT_FALSE(verify(input, uncached_plan_source()).replay.ok);
  input.checkpoint.emplace(job.log.size() + 1, checkpoint(whole_checkpoint(job, at), Hash{}));
  EXPECT_FALSE(verify(input, uncached_plan_source()).replay.ok);
}

}  // namespace
}  // namespace ae::engine::testing
