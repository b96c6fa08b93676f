// The events route: a job's events, filtered, page by page.
#include <algorithm>
#include <memory>
#include <utility>

#include "agents/diagnostics.h"
#include "api/request_context.h"
#include "inspect/effects.h"
#include "log/seal.h"
#include "runtime/log_opener.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::size_t kReadPositionsMax = 256;

// A class of the event table. "effect" is not one of them: it selects every record of an effect
// (inspect/effects.h).
Result<std::optional<EventClass>> class_of(const std::string* name) {
  if (!name || name->empty()) return std::nullopt;
  if (*name == "history") return EventClass::history;
  if (*name == "coordination") return EventClass::coordination;
  if (*name == "recorded_effect") return EventClass::recorded_effect;
  if (*name == "narrative") return EventClass::narrative;
  return fail(Code::input_invalid,
              "\"class\" must be history, coordination, recorded_effect, narrative or effect");
}

Status is_event_type(const std::string& name) {
  if (event_kind(name) != nullptr) return {};
  agents::ClosestName nearest(name);
  for (const EventKind& kind : event_kinds()) nearest.consider(kind.name);
  const std::string suggestion = nearest.best();
  return fail(Code::input_invalid,
              "\"type\" is not an event type: \"" + name.substr(0, 64) + "\"" +
                  (suggestion.empty() ? "" : " (did you mean " + suggestion + "?)"));
}

EventClass class_of(const Event& event) {
  const EventKind* kind = event_kind(event.type);
  return kind ? kind->event_class : EventClass::narrative;
}

}  // namespace

struct Api::EventsParams {
  std::uint64_t after = 0;
  std::size_t limit = kEventsDefault;
  std::optional<EventClass> of_class;
  bool effects = false;
  std::string type;
  Duration wait{};

  bool selects(const Event& event, std::string_view effect_kind) const {
    if (event.seq <= after || (effects && effect_kind.empty())) return false;
    if (of_class && class_of(event) != *of_class) return false;
    return type.empty() || event_name(event) == type;
  }
};

// One request. While it waits, it continues after the events that it has seen.
struct Api::EventsRead {
  JobId job;
  EventsParams params;
  ReadPosition position;
  engine::EffectKinds kinds;
};

// The result of a scan, made on a reader thread.
struct Api::EventsPage {
  std::optional<ApiResponse> response;  // nullopt: nothing was found, and the request waits
  std::uint64_t last_seq = 0;           // of the log
  ReadPosition position;                // everything up to it was scanned
  engine::EffectKinds kinds;            // after these events
  // The end of the last commit whose events the client has: its next request starts there.
  ReadPosition next_start;
  // The log does not continue at the start: the job was deleted, and a new one has its id.
  bool is_stale = false;
};

void Api::events(ContextPtr ctx) {
  auto params = [&]() -> Result<EventsParams> {
    EventsParams w;
    AE_ASSIGN(const auto after, ctx->query.number("after"));
    w.after = after.value_or(0);
    AE_ASSIGN(w.limit, ctx->query.limit(kEventsDefault, kEventsMax));
    const auto* of_class = ctx->query.find("class");
    w.effects = of_class && *of_class == "effect";
    if (!w.effects) {
      AE_ASSIGN(w.of_class, class_of(of_class));
    }
    if (const auto* type = ctx->query.find("type"); type && !type->empty()) {
      AE_TRY(is_event_type(*type));
      w.type = *type;
    }
    AE_ASSIGN(w.wait, wait_parameter(ctx->query));
    return w;
  }();
  if (!params) return ctx->refuse(params.error());
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  const auto read = std::make_shared<EventsRead>(EventsRead{.job = *job, .params = *params});
  // The kind of an effect depends on the events before it.
  const auto known = read_positions_.find(*job);
  if (known != read_positions_.end() && !params->effects && known->second.seq <= params->after) {
    read->position = known->second;
  }
  if_changed(ctx, *job, [this, ctx, read] {
    wait(ctx, read->job, read->params.wait,
         [this, ctx, read](const std::shared_ptr<LongPoll>& long_poll) {
           when_progressed(ctx, long_poll,
                           [this, ctx, read, long_poll] { read_events(ctx, read, long_poll); });
         });
  });
}

// On a reader thread.
Result<Api::EventsPage> Api::scan_events(const EventsRead& read, bool waits,
                                         const ResponseMaker& maker, store::LoadedJob&& loaded,
                                         const async::Interrupt& interrupt) {
  const EventsParams& params = read.params;
  EventsPage page{.last_seq = loaded.row.last_seq,
                  .position = read.position,
                  .kinds = read.kinds,
                  .next_start = read.position};
  runtime::LogOpener opener(read.job, loaded, {}, read.position.seq, read.position.head);
  std::vector<Value> found;
  Value next;
  std::uint64_t returned = params.after;  // the last event that the client has
  while (next.is_null() && opener.next()) {
    if (interrupt.requested()) return std::unexpected(runtime::read_interrupted_error());
    for (const Event& event : opener.take_opened()) {
      const std::string_view kind = params.effects ? page.kinds.kind_of(event) : "";
      if (!params.selects(event, kind)) continue;
      if (found.size() == params.limit) {
        next = found.back()["seq"];
        break;
      }
      found.push_back(envelope(read.job, event));
      if (params.effects) found.back() = found.back().with("kind", kind);
      returned = event.seq;
    }
    page.position = {opener.seq(), opener.head()};
    if (next.is_null() && opener.seq() <= returned) page.next_start = page.position;
  }
  if (next.is_null()) {
    if (const Status complete = opener.complete(); !complete) {
      page.is_stale = read.position.seq > 0;
      if (page.is_stale) return page;
      return std::unexpected(complete.error());
    }
  }
  const bool ended = store::has_ended(loaded.row.status);
  if (found.empty() && waits && !ended) return page;
  page.response = maker.make(&loaded.row, Value::object({{"ended", ended},
                                                         {"events", Value::array(std::move(found))},
                                                         {"next", next}}));
  return page;
}

void Api::read_events(const ContextPtr& ctx, std::shared_ptr<EventsRead> read,
                      std::shared_ptr<LongPoll> long_poll) {
  const bool waits = read->params.wait.count() > 0 && !long_poll->last;
  compute_loaded<EventsPage>(
      ctx, read->job, read->position.seq + 1,
      [now = *read, waits, maker = response_maker(ctx)](store::LoadedJob&& loaded,
                                                        const async::Interrupt& interrupt) {
        return scan_events(now, waits, maker, std::move(loaded), interrupt);
      },
      [this, ctx, read, long_poll](Result<EventsPage> page) {
        if (!page) {
          long_poll->is_done = true;
          return ctx->refuse(page.error());
        }
        if (page->is_stale) {
          read_positions_.erase(read->job);
          read->position = {};
          read->kinds = {};
          return read_events(ctx, read, long_poll);
        }
        long_poll->seen = page->last_seq;
        read->position = page->position;
        read->kinds = std::move(page->kinds);
        if (!read->params.effects) {
          if (read_positions_.size() >= kReadPositionsMax) read_positions_.clear();
          read_positions_[read->job] = page->next_start;
        }
        if (!page->response) return long_poll->keep_waiting();
        long_poll->is_done = true;
        ctx->done(*std::move(page->response));
      });
}

}  // namespace ae::api
