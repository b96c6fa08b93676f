#include "runtime/log_walk.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

namespace ae::runtime {

using Direction = store::WindowRequest::Direction;

Result<LogPart> open_window(const JobId& job, store::LogWindow window, const ValueLookup& lookup) {
  std::unordered_map<Hash, const std::string*> by_hash;
  for (const Blob& blob : window.blobs) by_hash.emplace(blob.hash, &blob.bytes);
  const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
    if (const auto blob = by_hash.find(hash); blob != by_hash.end()) return *blob->second;
    return fail(Code::log_corrupt, "blob " + to_hex(hash) + " is missing");
  };
  LogPart part{.row = std::move(window.row), .events = {}, .preceding = {}, .checkpoint = {}};
  part.checkpoint = std::move(window.checkpoint);
  if (window.preceding) {
    AE_ASSIGN(part.preceding, head_of(*window.preceding));
  }
  if (window.commits.empty()) part.preceding = part.row.head;
  Hash head = part.preceding;
  std::uint64_t seq = 0;
  for (const std::string& bytes : window.commits) {
    AE_ASSIGN(OpenedBatch opened, open(job, bytes, head, blobs, lookup));
    const bool follows =
        seq == 0 ? window.preceding || opened.first_seq == 1 : opened.first_seq == seq + 1;
    if (!follows) {
      return fail(Code::log_corrupt,
                  "the event before event " + std::to_string(opened.first_seq) + " is missing");
    }
    head = opened.head;
    seq = opened.last_seq;
    for (Event& event : opened.events) part.events.push_back(std::move(event));
  }
  if (seq > part.row.last_seq || (seq == part.row.last_seq && head != part.row.head)) {
    return fail(Code::log_corrupt, "the log ends otherwise than the job's row has it, at event " +
                                       std::to_string(part.row.last_seq));
  }
  return part;
}

namespace {

struct Walk {
  store::Store& store;
  const JobId job;
  store::WindowRequest next;
  const ValueLookup lookup;
  const VisitPart visit;
  async::Done<Result<store::JobRow>> done;
};

void read_part(const std::shared_ptr<Walk>& walk) {
  walk->store.load_window(walk->job, walk->next, [walk](Result<store::LogWindow> window) {
    if (!window) return walk->done(std::unexpected(window.error()));
    auto part = open_window(walk->job, *std::move(window), walk->lookup);
    if (!part) return walk->done(std::unexpected(part.error()));
    const bool forwards = walk->next.direction == Direction::after;
    const std::uint64_t last_seq = part->row.last_seq;
    const bool is_last = part->events.empty() || (forwards ? part->events.back().seq == last_seq
                                                           : part->events.front().seq == 1);
    if (!part->events.empty()) {
      walk->next.seq = forwards ? part->events.back().seq : part->events.front().seq;
    }
    walk->next.reads_checkpoint = false;
    const bool goes_on = walk->visit(*part);
    if (is_last || !goes_on) return walk->done(std::move(part->row));
    read_part(walk);
  });
}

}  // namespace

void walk_log(store::Store& store, const JobId& job, store::WindowRequest from,
              const ValueLookup& lookup, VisitPart visit, async::Done<Result<store::JobRow>> done) {
  read_part(
      std::make_shared<Walk>(Walk{store, job, from, lookup, std::move(visit), std::move(done)}));
}

namespace {

struct Selection {
  store::Store& store;
  const JobId job;
  const std::vector<std::uint64_t> seqs;
  const ValueLookup lookup;
  async::Done<Result<std::vector<Event>>> done;
  std::size_t read = 0;  // of `seqs`
  std::vector<Event> events;
};

// The window from the next seq: a run of seqs that are close to each other is one window.
store::WindowRequest window_of(const Selection& selection) {
  constexpr std::uint64_t kGap = 16;  // events between two seqs that are read rather than skipped
  std::size_t last = selection.read;
  const std::uint64_t first = selection.seqs[last];
  while (last + 1 < selection.seqs.size() &&
         selection.seqs[last + 1] - selection.seqs[last] <= kGap &&
         selection.seqs[last + 1] - first < kPartEvents) {
    ++last;
  }
  return {.direction = Direction::after,
          .seq = first - 1,
          .events_max = selection.seqs[last] - first + 1};
}

void read_selected(const std::shared_ptr<Selection>& selection) {
  if (selection->read == selection->seqs.size()) {
    return selection->done(std::move(selection->events));
  }
  const store::WindowRequest window = window_of(*selection);
  selection->store.load_window(
      selection->job, window, [selection](Result<store::LogWindow> loaded) {
        if (!loaded) return selection->done(std::unexpected(loaded.error()));
        auto part = open_window(selection->job, *std::move(loaded), selection->lookup);
        if (!part) return selection->done(std::unexpected(part.error()));
        if (part->events.empty()) return selection->done(std::move(selection->events));
        for (Event& event : part->events) {
          const auto& seqs = selection->seqs;
          if (selection->read == seqs.size() || event.seq != seqs[selection->read]) continue;
          selection->events.push_back(std::move(event));
          ++selection->read;
        }
        read_selected(selection);
      });
}

}  // namespace

void read_events(store::Store& store, const JobId& job, std::vector<std::uint64_t> seqs,
                 const ValueLookup& lookup, async::Done<Result<std::vector<Event>>> done) {
  std::ranges::sort(seqs);
  const auto twice = std::ranges::unique(seqs);
  seqs.erase(twice.begin(), twice.end());
  read_selected(std::make_shared<Selection>(
      Selection{store, job, std::move(seqs), lookup, std::move(done), 0, {}}));
}

}  // namespace ae::runtime
