// Pages of events: the events of a job, forwards or backwards, and with ?wait those that follow.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "agents/diagnostics.h"
#include "api/operations.h"
#include "api/read.h"
#include "inspect/event_page.h"
#include "runtime/service/log_walk.h"
#include "store/rules.h"

namespace ae::api {
namespace {

using Direction = store::WindowRequest::Direction;

Result<std::optional<EventClass>> class_from_text(const std::string& name) {
  if (name.empty() || name == engine::kEffectClass) return std::nullopt;
  for (const engine::NamedEventClass& one : engine::kEventClasses) {
    if (one.name == name) return one.event_class;
  }
  return fail(Code::input_invalid,
              "\"class\" must be history, coordination, recorded_effect, narrative or effect");
}

Status is_event_type(const std::string& name) {
  if (name.empty() || event_kind(name) != nullptr) return {};
  agents::ClosestName nearest(name);
  for (const EventKind& kind : event_kinds()) nearest.consider(kind.name);
  const std::string best = nearest.best();
  const std::string suggestion = best.empty() ? "" : fmt::format(" (did you mean {}?)", best);
  return fail(Code::input_invalid, "\"type\" is not an event type: \"{}\"{}", name.substr(0, 64),
              suggestion);
}

std::string text_parameter(const Query& query, std::string_view name) {
  const std::string* text = query.find(name);
  return text != nullptr ? *text : std::string();
}

Result<engine::EventQuery> event_query(const Query& query) {
  engine::EventQuery wanted;
  AE_ASSIGN(const auto after, query.number("after"));
  wanted.after = after.value_or(0);
  AE_ASSIGN(wanted.before, query.number("before"));
  AE_ASSIGN(wanted.limit, query.limit(kEventsDefault, kEventsMax));
  const std::string event_class = text_parameter(query, "class");
  AE_ASSIGN(wanted.of_class, class_from_text(event_class));
  wanted.effects = event_class == engine::kEffectClass;
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

// Where to begin, and how much to read at once. `scanned`: the last event that was read for this
// request.
store::WindowRequest window_of(const engine::EventQuery& query, std::uint64_t scanned) {
  store::WindowRequest window{
      .direction = Direction::after, .seq = query.after, .events_max = runtime::kPartEvents};
  if (query.descending) {
    window.direction = Direction::before;
    window.seq = query.before.value_or(store::kLogEnd);
  }
  // The kind of an effect depends on the events before it.
  if (query.effects) window.seq = scanned;
  // One more event tells whether there is a next page.
  if (!query.is_filtered() && query.limit < window.events_max) window.events_max = query.limit + 1;
  return window;
}

// One request.
struct EventsRead {
  JobId job;
  engine::EventQuery query;
  bool waits = false;
  // Of the events that were read while it waited.
  std::uint64_t scanned = 0;
  engine::EffectKinds kinds = {};
};

// A page, filled on reader threads.
struct EventsScan {
  engine::EventPage page;
  bool descending = false;
  std::optional<store::JobRow> row = {};  // the page shows the log as of this row
  // Of one step: its events, in the direction of the page, and how many were read.
  std::vector<std::uint64_t> seqs = {};
  std::size_t read = 0;

  // False: the page is complete.
  bool add(const runtime::LogPart& part) {
    // Backwards, events that are committed during the walk are not in the page.
    if (!descending || !row) row = part.row;
    return add(part.events);
  }
  bool add(const std::vector<Event>& events) {
    const auto take = [this](const Event& event) { return page.add(event); };
    return descending ? std::ranges::all_of(events | std::views::reverse, take)
                      : std::ranges::all_of(events, take);
  }
};

runtime::LogSource events_source(ApiContext& api, const RequestPtr& ctx, const EventsRead& read) {
  const bool is_cut = read.query.slim && read.query.text.empty();
  return {.store = api.store,
          .executor = api.runtime.reader().executor(),
          .lookup = {},
          .abandoned = ctx->request.disconnected,
          .owner = api.alive.watch(),
          .cut_above = is_cut ? engine::kSlimBytes : 0};
}

void scan_log(ApiContext& api, const RequestPtr& ctx, const std::shared_ptr<EventsRead>& read,
              const std::shared_ptr<EventsScan>& scan, async::Done<Result<store::JobRow>> done) {
  runtime::walk_log(
      events_source(api, ctx, *read), read->job, window_of(read->query, read->scanned),
      [scan](runtime::LogPart& part) { return scan->add(part); }, std::move(done));
}

void read_step_events(ApiContext& api, const RequestPtr& ctx,
                      const std::shared_ptr<EventsRead>& read,
                      const std::shared_ptr<EventsScan>& scan,
                      async::Done<Result<store::JobRow>> done) {
  if (scan->read == scan->seqs.size()) {
    read->scanned = scan->row->last_seq;
    return done(*scan->row);
  }
  // One more event tells whether there is a next page.
  const std::size_t most = std::min<std::size_t>(read->query.limit + 1, runtime::kPartEvents);
  const std::span<const std::uint64_t> left = std::span(scan->seqs).subspan(scan->read);
  const auto next = left.first(std::min(left.size(), most));
  scan->read += next.size();
  runtime::read_events(
      events_source(api, ctx, *read), read->job, {next.begin(), next.end()},
      [&api, ctx, read, scan, done = std::move(done)](Result<std::vector<Event>> events) mutable {
        if (!events) return done(std::unexpected(events.error()));
        async::compute<bool>(
            api.runtime.reader().executor(),
            [scan, events = *std::move(events)](const std::stop_token&) {
              return scan->add(events);
            },
            [&api, alive = api.alive.watch(), ctx, read, scan,
             done = std::move(done)](bool goes_on) mutable {
              if (!alive) return;
              if (goes_on) return read_step_events(api, ctx, read, scan, std::move(done));
              done(*scan->row);
            });
      });
}

// The index of the job's steps names the events of a step.
void find_step_events(ApiContext& api, const RequestPtr& ctx,
                      const std::shared_ptr<EventsRead>& read,
                      const std::shared_ptr<EventsScan>& scan,
                      async::Done<Result<store::JobRow>> done) {
  api.history.newest(
      read->job, [&api, alive = api.alive.watch(), ctx, read, scan,
                  done = std::move(done)](Result<runtime::History::NewestState> newest) mutable {
        if (!alive) return;
        if (!newest) {
          const Code code = newest.error().code;
          const bool is_readable = code != Code::not_found && code != Code::unavailable;
          // The log may be readable though it has no state.
          if (is_readable) return scan_log(api, ctx, read, scan, std::move(done));
          return done(std::unexpected(newest.error()));
        }
        scan->row = std::move(newest->row);
        if (const auto* step = newest->indexed->index().find(StepId(read->query.step))) {
          const std::uint64_t end = read->query.before.value_or(store::kLogEnd);
          const auto from = std::ranges::upper_bound(step->seqs, read->query.after);
          const auto to = std::ranges::lower_bound(from, step->seqs.end(), end);
          scan->seqs.assign(from, to);
          if (scan->descending) std::ranges::reverse(scan->seqs);
        }
        read_step_events(api, ctx, read, scan, std::move(done));
      });
}

void scan_events(ApiContext& api, const RequestPtr& ctx, const std::shared_ptr<EventsRead>& read,
                 const std::shared_ptr<EventsScan>& scan, async::Done<Result<store::JobRow>> done) {
  if (!read->query.step.empty() && !read->query.effects) {
    return find_step_events(api, ctx, read, scan, std::move(done));
  }
  scan_log(api, ctx, read, scan, std::move(done));
}

void read_events(ApiContext& api, const RequestPtr& ctx, std::shared_ptr<EventsRead> read,
                 LongPollPtr long_poll) {
  const auto refuse = [ctx, long_poll](const Error& error) {
    long_poll->is_done = true;
    ctx->refuse(error.code == Code::not_found ? missing_job_error(ctx->id) : error);
  };
  with_slot(api, ctx, [&api, ctx, read, long_poll, refuse](Result<ReadLimiter::Slot> slot) {
    if (!slot) return refuse(slot.error());
    const auto scan = std::make_shared<EventsScan>(
        EventsScan{.page = engine::EventPage(read->job, read->query, read->kinds),
                   .descending = read->query.descending});
    scan_events(api, ctx, read, scan,
                [&api, alive = api.alive.watch(), ctx, read, long_poll, refuse, scan, slot = *slot,
                 maker = response_maker(api, ctx)](Result<store::JobRow> walked) mutable {
                  if (!alive) return;
                  if (!walked) return refuse(walked.error());
                  const bool ended = store::has_ended(scan->row->status);
                  const bool answers = scan->page.has_events() || scan->page.has_next() ||
                                       !read->waits || long_poll->last || ended;
                  if (!answers) {
                    long_poll->seen = scan->row->last_seq;
                    read->scanned = std::max(read->scanned, scan->page.scanned());
                    read->query.after = std::max(read->query.after, read->scanned);
                    read->kinds = scan->page.kinds();
                    return long_poll->keep_waiting();
                  }
                  long_poll->is_done = true;
                  async::compute<ApiResponse>(
                      api.runtime.reader().executor(),
                      [scan, ended, maker = std::move(maker)](const std::stop_token&) {
                        return maker.make(&*scan->row,
                                          std::move(scan->page).take(scan->row->last_seq, ended));
                      },
                      [ctx, slot](ApiResponse response) { ctx->done(std::move(response)); });
                });
  });
}

}  // namespace

void operations::events(ApiContext& api, RequestPtr ctx) {
  auto query = event_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  const Duration most = wait_parameter(ctx->query).value_or(Duration(0));
  const auto read = std::make_shared<EventsRead>(
      EventsRead{.job = *job, .query = *std::move(query), .waits = most.count() > 0});
  if_changed(api, ctx, *job, [&api, ctx, read, most] {
    api.waiting.wait(ctx, read->job, most, [&api, ctx, read](const LongPollPtr& long_poll) {
      when_progressed(api, ctx, long_poll,
                      [&api, ctx, read, long_poll] { read_events(api, ctx, read, long_poll); });
    });
  });
}

}  // namespace ae::api
