// Conformance: windows of a log, and what lists show of a job.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

// A log of commits with one to three events, in which every third one references a blob.
struct WindowedLog {
  struct Commit {
    std::uint64_t first_seq = 0, last_seq = 0;
    std::string bytes;
    bool has_blob = false;
  };
  std::vector<Commit> commits;
  std::uint64_t last_seq() const { return commits.back().last_seq; }
};

inline WindowedLog append_log(ConformanceFixture& r, const std::string& job, std::size_t commits) {
  WindowedLog log;
  for (std::size_t i = 0; i < commits; ++i) {
    const std::uint64_t seq = i == 0 ? 0 : log.last_seq();
    Batch b = i == 0 ? r.create_claimed(job) : r.append(job, r.leased(), seq);
    b.sealed = sealed(job, seq + 1, i == 0 ? 2 : 1 + i % 3);
    if (i % 3 == 0) b.sealed->blobs = {blob("shared"), blob(fmt::format("of {}", i))};
    log.commits.push_back(
        {b.sealed->first_seq, b.sealed->last_seq, b.sealed->bytes, !b.sealed->blobs.empty()});
    r.must_commit(std::move(b));
    // Commits of other jobs are between those of this one.
    if (i % 4 == 0) r.must_commit(r.create(fmt::format("{}-{}", job, i)));
  }
  return log;
}

inline void expect_window(ConformanceFixture& r, const WindowedLog& log, WindowRequest window) {
  const bool forwards = window.direction == WindowRequest::Direction::after;
  const std::uint64_t end = std::min(window.seq, log.last_seq() + 1);
  const std::uint64_t first =
      forwards ? window.seq + 1 : end - std::min(window.events_max, end == 0 ? 0 : end - 1);
  const std::uint64_t last = forwards ? window.seq + window.events_max : end - (end == 0 ? 0 : 1);
  const auto found = r.load_window("j1", window);
  ASSERT_TRUE(found) << found.error().message;
  std::vector<std::string> commits;
  std::optional<std::string> preceding;
  std::size_t blobs = 0;
  for (std::size_t i = 0; i < log.commits.size(); ++i) {
    const WindowedLog::Commit& commit = log.commits[i];
    if (first > last || commit.last_seq < first || commit.first_seq > last) continue;
    if (commits.empty() && i > 0) preceding = log.commits[i - 1].bytes;
    commits.push_back(commit.bytes);
    blobs += commit.has_blob ? 1 : 0;
  }
  const std::string which =
      fmt::format("{} {}, {}", forwards ? "after" : "before", window.seq, window.events_max);
  EXPECT_EQ(found->commits, commits) << which;
  EXPECT_EQ(found->preceding, preceding) << which;
  EXPECT_EQ(found->blobs.size(), blobs == 0 ? 0 : blobs + 1) << which;
  EXPECT_EQ(found->row.last_seq, log.last_seq());
}

inline void windows(ConformanceFixture& r) {
  const WindowedLog log = append_log(r, "j1", 40);
  for (const std::uint64_t events_max : {1U, 2U, 5U, 17U, 500U}) {
    for (std::uint64_t seq = 0; seq <= log.last_seq() + 2; ++seq) {
      for (const auto direction :
           {WindowRequest::Direction::after, WindowRequest::Direction::before}) {
        expect_window(r, log, {.direction = direction, .seq = seq, .events_max = events_max});
      }
    }
    expect_window(
        r, log,
        {.direction = WindowRequest::Direction::before, .seq = kLogEnd, .events_max = events_max});
  }
  EXPECT_EQ(show(r.load_window("none", {})), "not_found");
}

// Commits beyond the limit in bytes are left out at the far end; one commit is always read.
inline void windows_are_bounded(ConformanceFixture& r) {
  std::vector<std::string> bytes;
  for (std::uint64_t seq = 1; seq <= 5; ++seq) {
    Batch b = seq == 1 ? r.create_claimed("j1") : r.append("j1", r.leased(), seq - 1);
    b.sealed = sealed("j1", seq);
    b.sealed->bytes.resize(seq == 5 ? kWindowBytesMax + 1 : kWindowBytesMax / 2, 'x');
    b.sealed->head = sha256(b.sealed->bytes);
    bytes.push_back(b.sealed->bytes);
    r.must_commit(std::move(b));
  }
  const auto first = r.load_window("j1", {});
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->commits == std::vector<std::string>(bytes.begin(), bytes.begin() + 2));
  EXPECT_FALSE(first->preceding);
  const auto last =
      r.load_window("j1", {.direction = WindowRequest::Direction::before, .seq = kLogEnd});
  ASSERT_TRUE(last);
  EXPECT_TRUE(last->commits == std::vector<std::string>{bytes[4]});
  EXPECT_TRUE(last->preceding == bytes[3]);
  const auto middle =
      r.load_window("j1", {.direction = WindowRequest::Direction::before, .seq = 5});
  ASSERT_TRUE(middle);
  EXPECT_TRUE(middle->commits == std::vector<std::string>(bytes.begin() + 2, bytes.begin() + 4));
}

inline void window_with_checkpoint(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  Batch b = r.append("j1", r.leased(), 2);
  b.checkpoint = "state";
  r.must_commit(std::move(b));
  EXPECT_FALSE(r.load_window("j1", {})->checkpoint);
  const auto found = r.load_window("j1", {.seq = 3, .reads_checkpoint = true});
  ASSERT_TRUE(found && found->checkpoint);
  EXPECT_EQ(found->checkpoint->seq, 3U);
  EXPECT_EQ(found->checkpoint->bytes, "state");
  EXPECT_TRUE(found->commits.empty());
}

inline void summaries(ConformanceFixture& r) {
  Batch b = r.create_claimed("j1");
  b.summary = Summary{.error = {}, .body = "one"};
  r.must_commit(std::move(b));
  EXPECT_EQ(r.row("j1").summary, (Summary{.error = {}, .body = "one"}));
  r.must_commit(r.append("j1", r.leased(), 2));
  EXPECT_EQ(r.row("j1").summary->body, "one") << "a commit without a summary keeps it";
  b = r.append("j1", r.leased(), 3, "failed");
  b.summary = Summary{.error = "http_503", .body = std::string("two\0", 4)};
  b.release = true;
  r.must_commit(std::move(b));
  r.must_commit(r.create("j2"));
  const Summary two{.error = "http_503", .body = std::string("two\0", 4)};
  EXPECT_EQ(r.row("j1").summary, two);
  EXPECT_EQ(r.query({.error = "http_503"})->at(0).summary, two);
  EXPECT_EQ(r.listed_ids({.error = "http_503"}), "j1");
  EXPECT_EQ(r.listed_ids({.statuses = {"failed"}, .error = "http_503"}), "j1");
  EXPECT_EQ(r.listed_ids({.error = "http_500"}), "");
  EXPECT_FALSE(r.row("j2").summary);
  r.store_driver->restart();
  EXPECT_EQ(r.row("j1").summary, two);
}

inline void forks_and_times(ConformanceFixture& r) {
  const auto create = [&](const std::string& id, NewJob job) {
    Batch b = r.create(id, std::move(job));
    b.sealed->created_at = r.loop.now();
    r.must_commit(std::move(b));
    r.loop.advance(std::chrono::seconds(1));
  };
  create("origin", {.queue = "narrow"});
  create("one", {.forked_from = "origin"});
  create("two", {.queue = "narrow", .forked_from = "origin"});
  create("of-one", {.forked_from = "one"});
  EXPECT_EQ(r.listed_ids({.forked_from = "origin"}), "two one");
  EXPECT_EQ(r.listed_ids({.forked_from = "origin", .after = "two"}), "one");
  EXPECT_EQ(r.listed_ids({.queue = "narrow"}), "two origin");
  EXPECT_EQ(r.listed_ids({.queue = "narrow", .forked_from = "origin"}), "two");
  EXPECT_EQ(r.row("one").forked_from, "origin");
  EXPECT_EQ(r.row("origin").forked_from, "");
  const Instant third = r.at(std::chrono::seconds(2));
  EXPECT_EQ(r.listed_ids({.created_from = third}), "of-one two");
  EXPECT_EQ(r.listed_ids({.created_before = third}), "one origin");
  Batch later = r.append("origin", r.unleased(), 2, "waiting");
  later.sealed->created_at = r.loop.now();
  r.must_commit(std::move(later));
  EXPECT_EQ(r.listed_ids({.updated_from = third}), "of-one two origin");
  EXPECT_EQ(r.listed_ids({.created_before = third, .updated_from = third}), "origin");
}

inline std::vector<Case> window_cases() {
  return {{"a window has the commits of its events, in both directions", windows},
          {"a window is limited in bytes, and has at least one commit", windows_are_bounded},
          {"a window has the checkpoint if it is requested", window_with_checkpoint},
          {"a summary is replaced by a commit that has one", summaries},
          {"jobs are listed by origin, queue and times", forks_and_times}};
}

}  // namespace ae::store::conformance
