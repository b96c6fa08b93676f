// events: prints or follows the log of a job.
#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <memory>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "api/problem.h"
#include "app/api_client.h"
#include "cli/follow_retry.h"
#include "cli/job_reads.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "inspect/event_page.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

constexpr const char* kFollowWait = "10s";

struct EventsOptions : CommonOptions {
  std::string id, after, event_class, event_type;
  bool follow = false, partial_output = false;
};

std::vector<std::string> class_words() {
  std::vector<std::string> words =
      words_of(engine::kEventClasses | std::views::transform(&engine::NamedEventClass::name));
  words.emplace_back(engine::kEffectClass);
  return words;
}

std::vector<Option> events_options(EventsOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired},
          {"-f,--follow", "", &o.follow, "follow until the job ends"},
          {"--partial-output",
           "",
           &o.partial_output,
           "with --follow --json: also partial output",
           {.needs = "--follow"}},
          {"--after", "SEQ", &o.after, "only events after this seq"},
          {"--class",
           "CLASS",
           &o.event_class,
           "history, coordination, recorded_effect, narrative; or effect: all effect records",
           {.words = class_words()}},
          {"--type",
           "TYPE",
           &o.event_type,
           "only events of this type",
           {.words = words_of(event_kinds() | std::views::transform(&EventKind::name))}}};
}

bool is_terminal_event(std::string_view type) {
  return type == "job_completed" || type == "job_failed" || type == "job_cancelled";
}

void print_event(const Value& event, Terminal& terminal) {
  if (terminal.json()) return terminal.print_json(event);
  const Paint& paint = terminal.out();
  const std::int64_t seq = event["seq"].is_integer() ? event["seq"].as_int() : 0;
  const std::string head = fmt::format("{:>5}  {}", seq, exact_time(event.text("created_at")));
  const std::string payload = safe_json(canonical(event[field::payload]));
  terminal.print(
      fmt::format("{}  {}  {}\n", paint(Tint::dim, head), pad(safe(event.text("type")), 24),
                  terminal.width() > 70 ? cut(payload, terminal.width() - 59) : payload));
}

api::QueryPairs events_query(const EventsOptions& options, std::uint64_t after, const char* wait) {
  return {{"after", after > 0 ? std::to_string(after) : ""},
          {"class", options.event_class},
          {"type", options.event_type},
          {"limit", std::to_string(api::kEventsMax)},
          {"wait", wait}};
}

Result<std::uint64_t> after_of(const EventsOptions& options) {
  if (options.after.empty()) return 0;
  if (options.after.size() > 15 ||
      options.after.find_first_not_of("0123456789") != std::string::npos) {
    return fail(Code::usage, "--after must be the seq of an event");
  }
  return std::stoull(options.after);
}

// Follows a job's events and partial output.
class EventFollower {
 public:
  EventFollower(const EventsOptions& options, Terminal& terminal, std::uint64_t after)
      : options_(options),
        terminal_(terminal),
        after_(after),
        follow_retry_(FollowRetry::real_environment(
            [this](const std::string& text) { terminal_.warn(text); })) {}

  Status run(const app::StoreUrl& store) {
    AE_ASSIGN(auto client, open_to_read(store, options_.id));
    while (true) {
      if (!client) {
        // The owner ended: connects to its successor, or opens the store itself.
        auto opened = open_to_read(store, options_.id);
        if (!opened) {
          AE_TRY(follow_retry_.on_failure(opened.error()));
          continue;
        }
        client = *std::move(opened);
      }
      follow_retry_.wait_for_turn();
      auto has_events = client->is_remote() ? read_stream(*client) : read_page(*client);
      if (!has_events) {
        AE_TRY(follow_retry_.on_failure(has_events.error()));
        client.reset();
        continue;
      }
      if (is_over_ && has_failed_) print_failure(*client, store);
      if (is_over_ || !terminal_.flush()) return {};  // or the reader of our output is gone
      // If another process now owns the store, follow it: it notifies of events at once, and has
      // partial output.
      if (!client->is_remote()) {
        if (auto owner = app::find_owner(store)) client = std::move(owner);
      }
      if (*has_events) continue;
      // No new events: did the job end before, or is its last event filtered out?
      auto job = get(*client, {"api", "jobs", options_.id}, {});
      if (!job) {
        AE_TRY(follow_retry_.on_failure(job.error()));
        client.reset();
        continue;
      }
      follow_retry_.on_success();
      const std::string_view status = job->text("status");
      if (store::has_ended(status)) return {};
    }
  }

 private:
  void show(const Value& event) {
    print_event(event, terminal_);
    after_ = static_cast<std::uint64_t>(event["seq"].as_int());
    is_over_ = is_over_ || is_terminal_event(event.text("type"));
    has_failed_ = has_failed_ || event.text("type") == "job_failed";
  }

  // Prints where the job failed, which the event does not tell.
  void print_failure(app::ApiClient& client, const app::StoreUrl& store) {
    const auto job = get(client, {"api", "jobs", options_.id}, {});
    if (!job || !(*job)[field::error].is_object()) return;
    terminal_.note(fmt::format("job {} {}{}", safe(options_.id),
                               terminal_.err()(Tint::bad, "failed"),
                               failure_text((*job)[field::error])));
    const std::string trace =
        fmt::format("aetheris trace {}{}", quoted(options_.id), store_flag(store));
    terminal_.note(fmt::format("Details: {}", terminal_.err()(Tint::bold, trace)));
  }

  // Reads a page of events. True: there were some.
  Result<bool> read_page(app::ApiClient& client) {
    AE_ASSIGN(const Value page, get(client, {"api", "jobs", options_.id, "events"},
                                    events_query(options_, after_, kFollowWait)));
    follow_retry_.on_success();
    for (const Value& event : page["events"].items()) show(event);
    // A page may end before the first event that matches.
    if (page["next"].is_integer()) after_ = static_cast<std::uint64_t>(page["next"].as_int());
    return page["events"].size() > 0 || page["next"].is_integer();
  }

  // Reads a stream to its end. A slow reader delays only itself.
  Result<bool> read_stream(app::ApiClient& client) {
    api::ApiRequest request;
    request.path = {"api", "jobs", options_.id, "events"};
    for (auto& [name, value] : events_query(options_, after_, "")) {
      if (!value.empty() && name != "limit") request.query.emplace_back(name, std::move(value));
    }
    AE_ASSIGN(const api::ApiResponse end,
              client.follow(request, [&](const app::ApiClient::LiveEvent& live) {
                follow_retry_.on_success();
                auto event =
                    parse_json(live.data, {.bytes_max = live.data.size(), .depth_max = 1000});
                if (event && live.name == "said") {
                  print_delta(*event);
                } else if (event && (*event)["seq"].is_integer()) {
                  show(*event);
                }
                return terminal_.flush();
              }));
    if (end.status >= 400) {
      return std::unexpected(with_option_names(api::error_of_problem(end.body, end.status)));
    }
    return false;
  }

  void print_delta(const Value& delta) {
    if (terminal_.json()) {
      // By default every line is an event; --partial-output adds others. `said` is an alias.
      if (options_.partial_output) {
        terminal_.print_json(Value::object({{"partial_output", delta}, {"said", delta}}));
      }
      return;
    }
    const std::string stream_name =
        fmt::format("{}/{}", delta.text(field::invocation_id), delta[field::try_].as_int());
    const auto offset = static_cast<std::size_t>(delta["offset"].as_int());
    const std::string_view text = delta.text("text");
    // A reconnected stream repeats partial output from its beginning.
    if (!printed_.contains(stream_name) && printed_.size() >= kPrintedMax) printed_.clear();
    std::size_t& printed = printed_[stream_name];
    const std::size_t known = printed > offset ? printed - offset : 0;
    if (known >= text.size()) return;
    printed = offset + text.size();
    terminal_.print_stream(
        {.stream_name = stream_name,
         .head = terminal_.out()(Tint::dim,
                                 fmt::format("    “  {}", safe(delta.text(field::node_id)))) +
                 "  ",
         .text = safe(text.substr(known), true)},
        true);
  }

  static constexpr std::size_t kPrintedMax = 1'000;  // tries of calls
  const EventsOptions& options_;
  Terminal& terminal_;
  std::uint64_t after_;
  FollowRetry follow_retry_;
  bool is_over_ = false, has_failed_ = false;
  std::map<std::string, std::size_t> printed_;  // printed bytes of partial output, by call and try
};

Status follow(const EventsOptions& options, Terminal& terminal) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const std::uint64_t after, after_of(options));
  return EventFollower(options, terminal, after).run(store);
}

int events_command(const EventsOptions& options, Terminal& terminal) {
  if (options.follow) {
    if (auto followed = follow(options, terminal); !followed) {
      return terminal.fail_with(followed.error());
    }
    return kDone;
  }
  auto all = [&]() -> Result<std::vector<Value>> {
    AE_ASSIGN(const app::StoreUrl store, store_of(options));
    AE_ASSIGN(std::uint64_t after, after_of(options));
    AE_ASSIGN(const auto client, open_to_read(store, options.id));
    std::vector<Value> events;
    while (true) {
      AE_ASSIGN(const Value page, get(*client, {"api", "jobs", options.id, "events"},
                                      events_query(options, after, "")));
      for (const Value& event : page["events"].items()) events.push_back(event);
      if (!page["next"].is_integer()) return events;
      after = static_cast<std::uint64_t>(page["next"].as_int());
    }
  }();
  if (!all) return terminal.fail_with(all.error());
  if (terminal.json()) {
    terminal.print_json(
        Value::object({{"events", Value::array(std::move(*all))}, {"next", Value()}}));
    return kDone;
  }
  for (const Value& event : *all) print_event(event, terminal);
  return kDone;
}

}  // namespace

extern const Command kEventsCommand{
    .name = "events",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "print a job's log",
    .example = "aetheris events holiday -f",
    .bind = bound_command<EventsOptions, events_options, events_command>};

}  // namespace ae::cli
