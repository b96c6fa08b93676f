#include "runtime/service/log_walk.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <utility>

#include "runtime/log_opener.h"

namespace ae::runtime {

using Direction = store::WindowRequest::Direction;

Result<LogPart> open_window(const JobId& job, store::LogWindow window, const ValueLookup& lookup,
                            std::size_t cut_above) {
  std::unordered_map<Hash, const std::string*> by_hash;
  for (const Blob& blob : window.blobs) by_hash.emplace(blob.hash, &blob.bytes);
  const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
    if (const auto blob = by_hash.find(hash); blob != by_hash.end()) return *blob->second;
    return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
  };
  std::unordered_map<Hash, Value> cut;
  const ValueLookup lookup_or_cut = [&](const Hash& hash) -> const Value* {
    const auto blob = by_hash.find(hash);
    const std::string_view text = blob != by_hash.end() ? *blob->second : std::string_view();
    if (text.size() <= cut_above || (text[0] != '{' && text[0] != '[')) {
      return lookup ? lookup(hash) : nullptr;
    }
    return &(cut[hash] = Value::object({{"$cut", std::uint64_t{text.size()}}}));
  };
  const ValueLookup& used_lookup = cut_above > 0 ? lookup_or_cut : lookup;
  LogPart part{.row = std::move(window.row), .events = {}, .preceding = {}, .checkpoint = {}};
  part.checkpoint = std::move(window.checkpoint);
  if (window.preceding) {
    AE_ASSIGN(part.preceding, head_of(*window.preceding));
  }
  if (window.commits.empty()) part.preceding = part.row.head;
  Hash head = part.preceding;
  std::uint64_t seq = 0;
  std::vector<OpenedBatch> batches;
  batches.reserve(window.commits.size());
  for (const std::string& bytes : window.commits) {
    AE_ASSIGN(OpenedBatch opened, open(job, bytes, head, blobs, used_lookup));
    const bool follows =
        seq == 0 ? window.preceding || opened.first_seq == 1 : opened.first_seq == seq + 1;
    if (!follows) {
      return fail(Code::log_corrupt, "the event before event {} is missing", opened.first_seq);
    }
    head = opened.head;
    seq = opened.last_seq;
    batches.push_back(std::move(opened));
  }
  // Events are large: each is moved once.
  if (seq > 0) part.events.reserve(seq - batches.front().first_seq + 1);
  for (OpenedBatch& batch : batches) {
    std::ranges::move(batch.events, std::back_inserter(part.events));
  }
  if (seq > part.row.last_seq || (seq == part.row.last_seq && head != part.row.head)) {
    return fail(Code::log_corrupt, "the log ends otherwise than the job's row has it, at event {}",
                part.row.last_seq);
  }
  return part;
}

namespace {

// Opens the window on a reader thread, and passes the result of `work` to `then`.
template <class T>
void open_on_reader(const LogSource& source, const JobId& job, store::LogWindow window,
                    std::move_only_function<T(LogPart&)> work, async::Done<Result<T>> then) {
  async::compute<Result<T>>(
      source.executor,
      [job, window = std::move(window), lookup = source.lookup, cut_above = source.cut_above,
       abandoned = source.abandoned,
       work = std::move(work)](const std::stop_token& stopping) mutable -> Result<T> {
        const async::Interrupt interrupt{.stopping = stopping, .abandoned = abandoned};
        if (interrupt.requested()) return std::unexpected(read_interrupted_error());
        AE_ASSIGN(LogPart part, open_window(job, std::move(window), lookup, cut_above));
        return work(part);
      },
      std::move(then));
}

// A part that was visited.
struct VisitedPart {
  store::JobRow row;
  std::optional<std::uint64_t> first_seq, last_seq;  // nullopt: it has no events
  bool goes_on = false;
};

struct Walk {
  const LogSource source;
  const JobId job;
  store::WindowRequest next;
  const std::shared_ptr<VisitPart> visit;  // shared with the reader thread
  async::Done<Result<store::JobRow>> done;
};

void read_part(const std::shared_ptr<Walk>& walk) {
  auto work = [visit = walk->visit](LogPart& part) {
    VisitedPart visited;
    if (!part.events.empty()) {
      visited.first_seq = part.events.front().seq;
      visited.last_seq = part.events.back().seq;
    }
    visited.goes_on = (*visit)(part);
    visited.row = std::move(part.row);
    return visited;
  };
  walk->source.store.load_window(
      walk->job, walk->next,
      [walk, work = std::move(work)](Result<store::LogWindow> window) mutable {
        if (walk->source.has_ended()) return;
        if (!window) return walk->done(std::unexpected(window.error()));
        open_on_reader<VisitedPart>(
            walk->source, walk->job, *std::move(window), std::move(work),
            [walk](Result<VisitedPart> part) {
              if (walk->source.has_ended()) return;
              if (!part) return walk->done(std::unexpected(part.error()));
              const bool forwards = walk->next.direction == Direction::after;
              const bool is_last =
                  !part->last_seq ||
                  (forwards ? part->last_seq == part->row.last_seq : part->first_seq == 1u);
              if (is_last || !part->goes_on) return walk->done(std::move(part->row));
              walk->next.seq = forwards ? *part->last_seq : *part->first_seq;
              walk->next.reads_checkpoint = false;
              read_part(walk);
            });
      });
}

}  // namespace

void walk_log(LogSource source, const JobId& job, store::WindowRequest from, VisitPart visit,
              async::Done<Result<store::JobRow>> done) {
  read_part(
      std::make_shared<Walk>(Walk{std::move(source), job, from,
                                  std::make_shared<VisitPart>(std::move(visit)), std::move(done)}));
}

namespace {

struct Selection {
  const LogSource source;
  const JobId job;
  std::vector<std::uint64_t> seqs;  // to read
  async::Done<Result<std::vector<Event>>> done;
  std::vector<Event> events;
};

// The window from the first seq: a run of seqs that are close to each other is one window.
store::WindowRequest window_of(const std::vector<std::uint64_t>& seqs) {
  constexpr std::uint64_t kGap = 16;  // events between two seqs that are read rather than skipped
  std::size_t last = 0;
  while (last + 1 < seqs.size() && seqs[last + 1] - seqs[last] <= kGap &&
         seqs[last + 1] - seqs[0] < kPartEvents) {
    ++last;
  }
  return {
      .direction = Direction::after, .seq = seqs[0] - 1, .events_max = seqs[last] - seqs[0] + 1};
}

void read_selected(const std::shared_ptr<Selection>& selection) {
  if (selection->seqs.empty()) return selection->done(std::move(selection->events));
  using Events = std::vector<Event>;
  auto work = [wanted = selection->seqs](LogPart& part) {
    Events selected;
    for (Event& event : part.events) {
      if (std::ranges::binary_search(wanted, event.seq)) selected.push_back(std::move(event));
    }
    return selected;
  };
  selection->source.store.load_window(
      selection->job, window_of(selection->seqs),
      [selection, work = std::move(work)](Result<store::LogWindow> loaded) mutable {
        if (selection->source.has_ended()) return;
        if (!loaded) return selection->done(std::unexpected(loaded.error()));
        open_on_reader<Events>(selection->source, selection->job, *std::move(loaded),
                               std::move(work), [selection](Result<Events> read) {
                                 if (selection->source.has_ended()) return;
                                 if (!read) return selection->done(std::unexpected(read.error()));
                                 // The window begins with the first seq, unless the log ends before
                                 // it.
                                 if (read->empty())
                                   return selection->done(std::move(selection->events));
                                 const auto rest =
                                     std::ranges::upper_bound(selection->seqs, read->back().seq);
                                 selection->seqs.erase(selection->seqs.begin(), rest);
                                 std::ranges::move(*read, std::back_inserter(selection->events));
                                 read_selected(selection);
                               });
      });
}

}  // namespace

void read_events(LogSource source, const JobId& job, std::vector<std::uint64_t> seqs,
                 async::Done<Result<std::vector<Event>>> done) {
  std::ranges::sort(seqs);
  const auto twice = std::ranges::unique(seqs);
  seqs.erase(twice.begin(), twice.end());
  read_selected(std::make_shared<Selection>(
      Selection{std::move(source), job, std::move(seqs), std::move(done), {}}));
}

}  // namespace ae::runtime
