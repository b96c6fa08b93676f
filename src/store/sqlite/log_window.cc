// ReadStatements::load_window: the commits of a window, found by the pointers between commits.
#include <algorithm>
#include <cstring>

#include "store/rules.h"
#include "store/sqlite/reader.h"

namespace ae::store::sqlite {

Sql<ReadStatements::LinkedSpan> ReadStatements::read_span(const JobLocation& found,
                                                          std::int64_t commit) {
  Rows row(commit_span_, commit);
  AE_ASSIGN(const bool found_row, row.next());
  if (!found_row || row->integer(0) != found.id) return LinkedSpan{};
  LinkedSpan read{.id = commit,
                  .prev = row->integer(3),
                  .jump = row->integer(4),
                  .span = {row->count(1), row->count(2), static_cast<std::size_t>(row->count(5))}};
  // Commits point only to earlier ones, so that following them ends for any stored data.
  if (read.prev >= commit || read.jump >= commit) return LinkedSpan{};
  return read;
}

// The commit that contains the event. REQUIRES: 1 <= seq <= the last seq.
Sql<ReadStatements::LinkedSpan> ReadStatements::find_commit(const JobLocation& found,
                                                            std::uint64_t seq) {
  AE_ASSIGN(LinkedSpan at, read_span(found, found.last_commit));
  while (at.id > 0 && at.span.first_seq > seq) {
    if (at.jump > 0) {
      AE_ASSIGN(const LinkedSpan far, read_span(found, at.jump));
      if (far.id > 0 && far.span.last_seq >= seq) {
        at = far;
        continue;
      }
    }
    AE_ASSIGN(at, read_span(found, at.prev));
  }
  return at;
}

Sql<Result<LogWindow>> ReadStatements::load_window(const JobId& job, const WindowRequest& window) {
  Snapshot snapshot(begin_, end_);
  AE_TRY(snapshot.open());
  AE_ASSIGN(const auto found, find(job));
  if (!found) return Result<LogWindow>(std::unexpected(job_not_found(job)));
  LogWindow read{.row = found->row};
  if (window.reads_checkpoint) {
    Rows row(checkpoint_, found->id);
    AE_ASSIGN(const bool found_row, row.next());
    if (found_row) read.checkpoint = Checkpoint{row->count(0), row->text(1)};
  }
  const SeqRange range = range_of(window, found->row.last_seq);
  if (range.empty()) return Result<LogWindow>(std::move(read));
  std::vector<std::int64_t> ids;  // from the last one
  std::vector<CommitSpan> spans;
  AE_ASSIGN(LinkedSpan at, find_commit(*found, range.last));
  while (at.id > 0) {
    ids.push_back(at.id);
    spans.push_back(at.span);
    if (at.span.first_seq <= range.first) break;
    AE_ASSIGN(at, read_span(*found, at.prev));
  }
  if (at.id == 0) return Result<LogWindow>(std::unexpected(commit_missing(job)));
  std::ranges::reverse(ids);
  std::ranges::reverse(spans);
  const auto fitting = fit_window(window, spans);
  const auto begin = static_cast<std::size_t>(fitting.data() - spans.data());
  std::vector<Hash> blobs;
  std::int64_t preceding = 0;
  for (std::size_t i = begin; i < begin + fitting.size(); ++i) {
    Rows row(commit_, ids[i]);
    AE_TRY(row.next());
    if (i == begin) preceding = row->integer(3);
    read.commits.push_back(row->text(6));
    const std::string_view list = row->bytes(5);
    for (std::size_t b = 0; b + sizeof(Hash) <= list.size(); b += sizeof(Hash)) {
      std::memcpy(blobs.emplace_back().bytes.data(), list.data() + b, sizeof(Hash));
    }
  }
  if (fitting.front().first_seq > 1) {
    Rows row(commit_, preceding);
    AE_ASSIGN(const bool found_row, row.next());
    if (!found_row || row->integer(0) != found->id) {
      return Result<LogWindow>(std::unexpected(commit_missing(job)));
    }
    read.preceding = row->text(6);
  }
  AE_TRY(read_blobs(blobs, read.blobs));  // a missing one fails later, with log_corrupt
  return Result<LogWindow>(std::move(read));
}

}  // namespace ae::store::sqlite
