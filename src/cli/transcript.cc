// transcript: the messages and answers of a job's models, and each call with its result.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/follow_retry.h"
#include "cli/job_reads.h"
#include "cli/job_tree.h"
#include "cli/shared.h"
#include "cli/transcript_text.h"
#include "json/json.h"

namespace ae::cli {
namespace {

struct TranscriptOptions : CommonOptions {
  std::string id;
  bool follow = false, verbose = false, tree = false;
};

std::vector<Option> transcript_options(TranscriptOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired},
          {"-f,--follow", "", &o.follow, "follow until the job ends", {.excludes = {"--tree"}}},
          {"--tree", "", &o.tree, "also the child jobs, to the last level"},
          {"-v,--verbose", "", &o.verbose, "on a terminal: show long values whole"}};
}

constexpr std::size_t kTranscriptPage = 10'000;   // entries per response
constexpr std::size_t kTranscriptValueMax = 600;  // columns of a value on a terminal
constexpr std::string_view kTranscriptWait = "10s";

class TranscriptPrinter {
 public:
  TranscriptPrinter(const TranscriptOptions& options, const std::string& id, Terminal& terminal)
      : options_(options),
        id_(id),
        terminal_(terminal),
        text_({.paint = terminal.out(),
               .value_max = terminal.width() == 0 || options.verbose ? 0 : kTranscriptValueMax}) {}

  Result<Value> page(bool waits) const {
    api::ApiRequest request;
    request.path = {"api", "jobs", id_, "transcript"};
    request.query = {{"after", std::to_string(after_)}, {"limit", std::to_string(kTranscriptPage)}};
    if (waits) request.query.emplace_back("wait", kTranscriptWait);
    return answer_of(options_, app::OpenMode::read, std::move(request));
  }

  // All entries in one body. Without --json they are printed as they are read.
  Result<Value> read_all() {
    std::vector<Value> entries;
    while (true) {
      AE_ASSIGN(const Value read, page(false));
      if (!terminal_.json()) {
        if (after_ == 0) terminal_.print(text_.head(read));
        print(read["entries"]);
      } else {
        entries.insert(entries.end(), read["entries"].items().begin(),
                       read["entries"].items().end());
      }
      if (!read["next"].is_integer()) return read.with("entries", Value::array(std::move(entries)));
      after_ = static_cast<std::uint64_t>(read["next"].as_int());
    }
  }

  Status print_all() {
    AE_ASSIGN(const Value all, read_all());
    if (terminal_.json()) {
      terminal_.print_json(all);
    } else {
      print_notes(all);
    }
    return {};
  }

  // Prints entries until the job ends, or until the output is closed.
  Status follow() {
    FollowRetry follow_retry(
        FollowRetry::real_environment([this](const std::string& text) { terminal_.warn(text); }));
    while (true) {
      follow_retry.wait_for_turn();
      auto next = page(true);
      if (!next) {
        // The owner of the store ended: its successor or the store itself responds.
        AE_TRY(follow_retry.on_failure(next.error()));
        continue;
      }
      follow_retry.on_success();
      if (!has_begun_ && !terminal_.json()) terminal_.print(text_.head(*next));
      has_begun_ = true;
      print((*next)["entries"]);
      if (!terminal_.flush()) return {};
      if ((*next)["ended"] == Value(true) && (*next)["next"].is_null()) {
        if (!terminal_.json()) {
          terminal_.print("\n" + text_.head(*next));
          print_notes(*next);
        }
        return {};
      }
    }
  }

 private:
  void print(const Value& entries) {
    for (const Value& entry : entries.items()) {
      after_ = static_cast<std::uint64_t>(entry["seq"].as_int());
      if (terminal_.json()) {
        terminal_.print_json(entry);
      } else if (const std::string text = text_.entry(entry); !text.empty()) {
        terminal_.print(text);
      }
    }
  }

  void print_notes(const Value& body) {
    if (text_.cut()) terminal_.note("long values are cut; -v shows them whole");
    const std::string_view status = body.text("status");
    if (status == "waiting" || status == "parked") {
      terminal_.note(fmt::format("the job is {}; `aetheris job {}` shows what it waits for", status,
                                 safe(id_)));
    }
  }

  const TranscriptOptions& options_;
  const std::string id_;
  Terminal& terminal_;
  TranscriptText text_;
  std::uint64_t after_ = 0;
  bool has_begun_ = false;
};

int transcript_command(const TranscriptOptions& options, Terminal& terminal) {
  TranscriptPrinter transcription(options, options.id, terminal);
  const auto show = [&](app::ApiClient&, const std::string& id) {
    return TranscriptPrinter(options, id, terminal).read_all();
  };
  const Status done = options.tree     ? print_tree(options, options.id, terminal, show)
                      : options.follow ? transcription.follow()
                                       : transcription.print_all();
  if (!done) return terminal.fail_with(done.error());
  return kDone;
}

}  // namespace

extern const Command kTranscriptCommand{
    .name = "transcript",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "show the prompts, answers and calls of a job",
    .example = "aetheris transcript holiday",
    .bind = bound_command<TranscriptOptions, transcript_options, transcript_command>};

}  // namespace ae::cli
