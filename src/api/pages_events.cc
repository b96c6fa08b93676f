// Pages of events: the events of a job, forwards or backwards, and with ?wait those that follow.
#include <memory>
#include <ranges>
#include <utility>

#include "agents/diagnostics.h"
#include "api/request_context.h"
#include "inspect/event_page.h"
#include "runtime/log_walk.h"
#include "store/rules.h"

namespace ae::api {
namespace {

using Direction = store::WindowRequest::Direction;

Result<std::optional<EventClass>> class_from_text(const std::string& name) {
  if (name.empty() || name == "effect") return std::nullopt;
  if (name == "history") return EventClass::history;
  if (name == "coordination") return EventClass::coordination;
  if (name == "recorded_effect") return EventClass::recorded_effect;
  if (name == "narrative") return EventClass::narrative;
  return fail(Code::input_invalid,
              "\"class\" must be history, coordination, recorded_effect, narrative or effect");
}

Status is_event_type(const std::string& name) {
  if (name.empty() || event_kind(name) != nullptr) return {};
  agents::ClosestName nearest(name);
  for (const EventKind& kind : event_kinds()) nearest.consider(kind.name);
  const std::string suggestion = nearest.best();
  return fail(Code::input_invalid,
              "\"type\" is not an event type: \"" + name.substr(0, 64) + "\"" +
                  (suggestion.empty() ? "" : " (did you mean " + suggestion + "?)"));
}

std::string text_parameter(const Query& query, std::string_view name) {
  const std::string* text = query.find(name);
  return text != nullptr ? *text : std::string();
}

Result<engine::EventQuery> event_query(const Query& query) {
  engine::EventQuery wanted;
  AE_TRY(query.check_names(
      {"after", "before", "order", "limit", "class", "type", "step", "q", "fields", "wait"}));
  AE_ASSIGN(const auto after, query.number("after"));
  wanted.after = after.value_or(0);
  AE_ASSIGN(wanted.before, query.number("before"));
  AE_ASSIGN(wanted.limit, query.limit(kEventsDefault, kEventsMax));
  const std::string event_class = text_parameter(query, "class");
  AE_ASSIGN(wanted.of_class, class_from_text(event_class));
  wanted.effects = event_class == "effect";
  wanted.type = text_parameter(query, "type");
  AE_TRY(is_event_type(wanted.type));
  wanted.step = text_parameter(query, "step");
  wanted.text = text_parameter(query, "q");
  const std::string order = text_parameter(query, "order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return fail(Code::input_invalid, "\"order\" must be asc or desc");
  }
  wanted.descending = order == "desc";
  const std::string fields = text_parameter(query, "fields");
  if (!fields.empty() && fields != "slim") {
    return fail(Code::input_invalid, "\"fields\" must be slim");
  }
  wanted.slim = fields == "slim";
  AE_ASSIGN(const Duration wait, wait_parameter(query));
  if (wanted.descending && (wanted.effects || wait.count() > 0)) {
    return fail(Code::input_invalid,
                "\"order=desc\" cannot be used with \"class=effect\" or \"wait\"");
  }
  return wanted;
}

// Where to begin, and how much to read at once.
store::WindowRequest window_of(const engine::EventQuery& query) {
  store::WindowRequest window{
      .direction = Direction::after, .seq = query.after, .events_max = runtime::kPartEvents};
  if (query.descending) {
    window.direction = Direction::before;
    window.seq = query.before.value_or(store::kLogEnd);
  }
  // The kind of an effect depends on the events before it.
  if (query.effects) window.seq = 0;
  // One more event tells whether there is a next page.
  if (!query.is_filtered() && query.limit < window.events_max) window.events_max = query.limit + 1;
  return window;
}

}  // namespace

struct Api::EventsRequest {
  JobId job;
  engine::EventQuery query;  // while it waits, `after` is the last event that was read
  bool waits = false;
};

void Api::events(ContextPtr ctx) {
  auto query = event_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  const Duration most = wait_parameter(ctx->query).value_or(Duration(0));
  auto events_request = std::make_shared<EventsRequest>(
      EventsRequest{.job = *job, .query = *std::move(query), .waits = most.count() > 0});
  wait(ctx, *job, most, [this, ctx, events_request](const std::shared_ptr<LongPoll>& long_poll) {
    read_events_page(ctx, events_request, long_poll);
  });
}

void Api::read_events_page(const ContextPtr& ctx,
                           const std::shared_ptr<EventsRequest>& events_request,
                           const std::shared_ptr<LongPoll>& long_poll) {
  read_limiter_.acquire(ctx->request.by, [this, ctx, events_request,
                                          long_poll](ReadLimiter::Slot slot) {
    if (auto may = ctx->check_response_room(); !may) {
      long_poll->is_done = true;
      return ctx->refuse(may.error());
    }
    const auto page =
        std::make_shared<engine::EventPage>(events_request->job, events_request->query);
    runtime::walk_log(
        store_, events_request->job, window_of(events_request->query), {},
        [ctx, page, descending = events_request->query.descending](runtime::LogPart& part) {
          const auto add = [&](const Event& event) { return page->add(event); };
          if (ctx->request.disconnected && *ctx->request.disconnected) return false;
          return descending ? std::ranges::all_of(part.events | std::views::reverse, add)
                            : std::ranges::all_of(part.events, add);
        },
        [ctx, page, events_request, long_poll, slot = std::move(slot)](Result<store::JobRow> row) {
          const auto refuse = [&](const Error& error) {
            long_poll->is_done = true;
            ctx->refuse(error);
          };
          if (!row && row.error().code == Code::not_found) {
            return refuse(missing_job_error(ctx->id));
          }
          if (!row) return refuse(row.error());
          const bool ended = store::has_ended(row->status);
          const bool answers =
              page->has_events() || !events_request->waits || long_poll->last || ended;
          if (!answers) {
            // The events so far need not be read again.
            engine::EventQuery& query = events_request->query;
            if (!query.effects) query.after = std::max(query.after, page->scanned());
            return long_poll->keep_waiting();
          }
          long_poll->is_done = true;
          ctx->answer(200, std::move(*page).take(row->last_seq, ended));
        });
  });
}

}  // namespace ae::api
