// Creating jobs, listing them, and looking at one: its state, its events, its past.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "agents/faults.h"
#include "api/asked.h"
#include "api/views.h"
#include "async/portions.h"
#include "core/json.h"
#include "core/seal.h"
#include "core/trace_context.h"
#include "engine/effects.h"
#include "engine/failure_place.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::size_t kMarksMax = 256;
constexpr std::int64_t kPriorityMax = 1000;
constexpr std::string_view kStatuses[] = {"queued",    "running", "waiting",  "parked",
                                          "completed", "failed",  "cancelled"};

Value labels_value(const std::vector<std::pair<std::string, std::string>>& labels) {
  std::vector<Member> members;
  members.reserve(labels.size());
  for (const auto& [key, value] : labels) members.emplace_back(key, value);
  return Value::object(std::move(members));
}

Result<std::pair<std::string, std::string>> label(const std::string& text) {
  std::size_t at = text.find(':');
  if (at == text.npos) at = text.find('=');
  if (at == 0 || at == text.npos) {
    return fail(Code::input_invalid, "a label must be NAME:VALUE, not \"" + text + "\"");
  }
  return std::pair(text.substr(0, at), text.substr(at + 1));
}

Result<std::vector<std::pair<std::string, std::string>>> labels_of(const Value& labels) {
  std::vector<std::pair<std::string, std::string>> out;
  if (labels.is_null()) return out;
  if (!labels.is_object() || labels.size() > 64) {
    return fail(Code::input_invalid, "\"labels\" must be an object of at most 64 strings");
  }
  for (const auto& [name, value] : labels.members()) {
    if (!value.is_string() || name.empty() || name.size() > 256 || value.as_string().size() > 256) {
      return fail(Code::input_invalid, "label \"" + name.substr(0, 64) +
                                           "\" must be a string; names and values can have at most "
                                           "256 bytes");
    }
    if (name.find('\0') != name.npos || value.as_string().find('\0') != std::string::npos) {
      return fail(Code::input_invalid, "a label contains a NUL character");
    }
    out.emplace_back(name, value.as_string());
  }
  return out;
}

Result<std::vector<std::string>> capabilities_of(const Value& needed) {
  std::vector<std::string> out;
  if (needed.is_null()) return out;
  bool fits = needed.is_array() && needed.size() <= 64;
  for (std::size_t i = 0; fits && i < needed.size(); ++i) {
    const Value& one = needed.items()[i];
    fits = one.is_string() && agents::is_capability(one.as_string());
    if (fits) out.push_back(one.as_string());
  }
  if (!fits) {
    return fail(
        Code::input_invalid,
        "\"required_capabilities\" must be a list of at most 64 names, each of 1 to 64 of the "
        "characters A-Z a-z 0-9 . _ -");
  }
  return out;
}

// Of the event table; "effect" is none of them, it means every record of an effect (engine/effects.h).
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
  agents::Nearest nearest(name);
  for (const EventKind& kind : event_kinds()) nearest.look_at(kind.name);
  const std::string meant = nearest.take();
  return fail(Code::input_invalid, "\"type\" is not an event type: \"" + name.substr(0, 64) + "\"" +
                                       (meant.empty() ? "" : " (did you mean " + meant + "?)"));
}

EventClass class_of(const Event& event) {
  const EventKind* kind = event_kind(event.type);
  return kind ? kind->event_class : EventClass::narrative;
}

void sort_each_once(std::vector<std::string>& names) {
  std::ranges::sort(names);
  const auto twice = std::ranges::unique(names);
  names.erase(twice.begin(), twice.end());
}

// When a job ends at the latest: an instant, or a duration from now on. Fails with input_invalid.
struct Deadline {
  Instant at;
  std::string text;  // in one form
};
Result<Deadline> deadline_of(std::string_view text, Instant now) {
  if (const auto at = instant_from_text(text)) return Deadline{*at, to_text(*at)};
  const auto from_now = duration_from_text(text);
  if (!from_now || from_now->count() == 0) {
    return fail(Code::input_invalid,
                "\"deadline\" must be a time in UTC (2025-01-31T09:30:00Z) or a duration from 1ms "
                "to 36500d (90s)");
  }
  return Deadline{now + *from_now, ae::to_text(*from_now)};
}

// What a request names and what would not be so without it: the same asked in other words is the same.
Value asked_of(const Value& body, const runtime::NewJobRequest& wish, const agents::Agent& agent,
               const std::string& deadline, const engine::Limits& budget) {
  std::vector<Member> asked;
  if (budget.any()) asked.emplace_back("budget", stored(budget));
  if (!deadline.empty()) asked.emplace_back("deadline", deadline);
  if (wish.priority != 0) asked.emplace_back("priority", wish.priority);
  if (!body["queue"].is_null() && !(wish.queue.empty() && agent.queue.empty())) {
    asked.emplace_back("queue", body["queue"]);
  }
  if (auto needed = wish.required_capabilities; !needed.empty()) {
    sort_each_once(needed);
    asked.emplace_back("required_capabilities",
                       Value::array(std::vector<Value>(needed.begin(), needed.end())));
  }
  return asked.empty() ? Value() : Value::object(std::move(asked));
}

// What a request lets the job use. Fails with input_invalid.
Result<engine::Limits> budget_of(const Value& body, const engine::Plan& plan) {
  auto budget = engine::limits_asked(body);
  if (!budget) return std::unexpected(std::move(budget).error().in("\"budget\""));
  if (budget->cost_micros && !plan.prices_all()) {
    return fail(Code::input_invalid, "a cost limit needs a `price` for every model of the agent");
  }
  return budget;
}

// What a request says of when and where the job runs. REQUIRES: its key and id are known.
Status take_wishes(const Value& body, const agents::Agent& agent, Instant now,
                   runtime::NewJobRequest& wish) {
  if (const Value& priority = body["priority"]; !priority.is_null()) {
    const bool fits = priority.is_integer() && std::abs(priority.as_int()) <= kPriorityMax;
    if (!fits) {
      return fail(Code::input_invalid, "\"priority\" must be an integer from -1000 to 1000");
    }
    wish.priority = priority.as_int();
  }
  wish.queue = body["queue"].is_null() ? agent.queue : std::string(body.text("queue"));
  if (!wish.queue.empty() || !body["queue"].is_null()) {
    if (!agents::is_capability(wish.queue)) {
      return fail(Code::input_invalid,
                  "\"queue\" must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    }
  }
  if (wish.queue == store::kDefaultQueue) wish.queue.clear();
  AE_ASSIGN(wish.required_capabilities, capabilities_of(body["required_capabilities"]));
  std::string deadline;
  if (!body["deadline"].is_null()) {
    AE_ASSIGN(Deadline asked, deadline_of(body.text("deadline"), now));
    // Under a key, or an id, it may be the repetition of a request that was in time: then its job must be found.
    const bool may_repeat = !wish.idempotency_key.empty() || !wish.job.empty();
    if (asked.at <= now && !may_repeat) {
      return fail(Code::input_invalid, "the \"deadline\" " + asked.text + " has passed");
    }
    wish.deadline = asked.at;
    deadline = std::move(asked.text);
  }
  engine::Limits budget;
  if (!body["budget"].is_null()) {
    AE_ASSIGN(budget, budget_of(body["budget"], *wish.plan));
    AE_ASSIGN(wish.budget, lowered(wish.plan->budget, budget));
  }
  wish.asked = asked_of(body, wish, agent, deadline, budget);
  const auto& also = agent.required_capabilities;
  wish.required_capabilities.insert(wish.required_capabilities.end(), also.begin(), also.end());
  sort_each_once(wish.required_capabilities);
  return {};
}

bool is_terminal(std::string_view status) {
  return status == "completed" || status == "failed" || status == "cancelled";
}

// Somewhere in its id, agent, key or labels.
bool holds_text(const store::JobRow& row, const std::string& text) {
  const auto holds = [&](const std::string& in) { return in.find(text) != in.npos; };
  return holds(row.id.text) || holds(row.agent) || holds(row.idempotency_key) ||
         std::ranges::any_of(row.labels, [&](const auto& l) { return holds(l.second); });
}

}  // namespace

Result<Duration> wait_of(const Query& query) {
  const std::string* text = query.find("wait");
  if (!text) return Duration(0);
  auto wait = duration_from_text(*text);
  if (!wait) return std::unexpected(std::move(wait).error().in("\"wait\""));
  if (*wait > kWaitMax) return fail(Code::input_invalid, "\"wait\" can be at most 5m");
  return *wait;
}

Value row_json(const store::JobRow& row) {
  std::vector<Member> members{{"agent", row.agent},   {"created_at", to_text(row.created_at)},
                              {"id", row.id.text},    {"labels", labels_value(row.labels)},
                              {"status", row.status}, {"updated_at", to_text(row.updated_at)}};
  if (!row.idempotency_key.empty()) members.emplace_back("idempotency_key", row.idempotency_key);
  if (row.not_before) members.emplace_back("not_before", to_text(*row.not_before));
  if (row.wake_at) members.emplace_back("wake_at", to_text(*row.wake_at));
  return Value::object(std::move(members));
}

std::string cursor_of(const std::string& job, std::uint64_t number) {
  return job + "@" + std::to_string(number);
}
std::string cursor_of(const store::JobRow& row) { return cursor_of(row.id.text, row.number); }

void go_on_after(std::string_view cursor, store::Filter& filter) {
  const std::size_t at = cursor.find('@');
  filter.after = std::string(cursor.substr(0, at));
  if (at == cursor.npos) return;
  std::uint64_t number = 0;
  const auto read = std::from_chars(cursor.data() + at + 1, cursor.data() + cursor.size(), number);
  if (read.ec == std::errc() && read.ptr == cursor.data() + cursor.size()) {
    filter.after_number = number;
  } else {
    filter.after = std::string(cursor);  // no job has such an id
  }
}

// ---------------------------------------------------------------- lists

struct Api::Search {
  store::Filter filter;
  std::size_t wanted = 0;
  std::string text;
  std::size_t examined = 0;
  std::vector<store::JobRow> found;
};

void Api::jobs(Ask ask) {
  if (ask->query.find("stuck")) return stuck_jobs(std::move(ask));
  if (ask->query.find("in_doubt")) return doubtful_jobs(std::move(ask));
  const auto filter = [&]() -> Result<store::Filter> {
    AE_TRY(ask->query.only({"status", "agent", "label", "q", "cursor", "limit"}));
    store::Filter wanted;
    if (const auto* status = ask->query.find("status")) {
      if (std::ranges::find(kStatuses, std::string_view(*status)) == std::end(kStatuses)) {
        return fail(Code::input_invalid,
                    "\"status\" must be queued, running, waiting, parked, completed, failed or "
                    "cancelled");
      }
      wanted.status = *status;
    }
    if (const auto* agent = ask->query.find("agent")) wanted.agent = *agent;
    for (const std::string& text : ask->query.all("label")) {
      AE_ASSIGN(auto pair, label(text));
      wanted.labels.push_back(std::move(pair));
    }
    if (const auto* cursor = ask->query.find("cursor")) go_on_after(*cursor, wanted);
    AE_ASSIGN(wanted.limit, ask->query.limit(100, kJobsMax));
    return wanted;
  }();
  if (!filter) return ask->refuse(filter.error());
  const std::string* q = ask->query.find("q");
  auto search = std::make_shared<Search>();
  search->filter = *filter;
  search->wanted = filter->limit;
  if (q) search->text = *q;
  // One more says whether there is a next page. A text is looked for here, page by page.
  search->filter.limit = search->text.empty() ? search->wanted + 1 : kJobsMax;
  search_jobs(std::move(ask), std::move(search));
}

void Api::search_jobs(Ask ask, std::shared_ptr<Search> search) {
  store::Filter filter = search->filter;
  store_.query(std::move(filter), [this, alive = std::weak_ptr(alive_), ask,
                                   search](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ask->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ask->refuse(rows.error());
    const bool last = rows->size() < search->filter.limit;
    search->examined += rows->size();
    for (store::JobRow& row : *rows) {
      search->filter.after = row.id.text;
      search->filter.after_number = row.number;
      if (holds_text(row, search->text)) search->found.push_back(std::move(row));
    }
    const bool more = search->found.size() > search->wanted;
    const bool enough = more || search->examined >= kSearchMax;
    if (!last && !enough && alive.lock()) return search_jobs(ask, search);
    if (more) search->found.resize(search->wanted);
    std::vector<Value> items;
    items.reserve(search->found.size());
    for (const store::JobRow& row : search->found) items.push_back(row_json(row));
    Value next;
    if (more) {
      next = cursor_of(search->found.back());
    } else if (!last) {
      next = cursor_of(search->filter.after, *search->filter.after_number);
    }
    ask->answer(200,
                Value::object({{"jobs", Value::array(std::move(items))}, {"next_cursor", next}}));
  });
}

// ---------------------------------------------------------------- creating

Result<runtime::NewJobRequest> Api::new_job(const Asked& ask, const Value& body) {
  runtime::NewJobRequest wish;
  if (!options_.agents) {
    return fail(Code::unsupported,
                "this process has no agents file: send the request to a server that has one");
  }
  AE_ASSIGN(const Offer* const offer, offer_of(body.text("agent")));
  const agents::Agent* const agent = offer->agent.get();
  const auto plan = offer->plan;
  wish.agent = agent->name;
  wish.plan = plan;
  if (const Value* hash = body.find("plan_hash"); hash && !hash->is_null()) {
    if (*hash != Value(to_hex(plan->hash))) {
      return fail(Code::needs_version,
                  "the process that owns this store runs another version of "
                  "agent \"" +
                      wish.agent +
                      "\"; restart it with this file, or start it with `serve --watch`");
    }
  }
  const Value* input = body.find("input");
  wish.input = input ? *input : Value::object({});
  if (agent->input_schema) {
    AE_ASSIGN(const Schema schema, Schema::compile(*agent->input_schema));
    if (auto valid = schema.check(wish.input); !valid) {
      return std::unexpected(std::move(valid).error().in("the input of " + wish.agent));
    }
  }
  AE_ASSIGN(wish.labels, labels_of(body["labels"]));
  for (const auto& [key, value] : agent->labels) {
    const auto same = [&](const auto& own) { return own.first == key; };
    if (std::ranges::find_if(wish.labels, same) == wish.labels.end()) {
      wish.labels.emplace_back(key, value);
    }
  }
  std::ranges::sort(wish.labels);
  AE_ASSIGN(wish.idempotency_key, idempotency_key(ask.request, body));
  // An empty one comes from a variable that was never set: each request would make another job.
  if (!body["id"].is_null()) {
    auto id = job_id_from_text(body.text("id"));
    if (!id) return std::unexpected(std::move(id).error().in("\"id\""));
    wish.job = *std::move(id);
  }
  AE_TRY(take_wishes(body, *agent, store_.now(), wish));
  if (const auto context = trace_context(ask.request.traceparent, ask.request.tracestate)) {
    wish.traceparent = traceparent(context->trace_id, context->parent_id, context->flags);
    wish.tracestate = context->state;
  }
  wish.hold = options_.runs;
  return wish;
}

void Api::create(Ask ask) {
  with_agents([this, ask] { make_job(ask); });
}

void Api::make_job(Ask ask) {
  auto wish = [&]() -> Result<runtime::NewJobRequest> {
    AE_TRY(ask->query.only({"wait"}));
    AE_TRY(wait_of(ask->query));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body,
                            {"agent", "input", "idempotency_key", "labels", "id", "plan_hash",
                             "priority", "required_capabilities", "queue", "deadline", "budget"}));
    for (const char* name : {"agent", "idempotency_key", "id", "plan_hash", "queue", "deadline"}) {
      AE_TRY(fields.text(name));
    }
    if (fields["agent"].is_null()) return fail(Code::input_invalid, "\"agent\" is missing");
    return new_job(*ask, fields.object());
  }();
  if (!wish) return ask->refuse(wish.error());
  runtime_.create(*wish, [this, ask, wish = *wish](Result<runtime::Created> made) mutable {
    if (made) {
      std::vector<Member> more;
      if (made->input_erased) more.emplace_back("input_compared", false);
      return created(ask, made->job, made->existing ? 200 : 201, std::move(more));
    }
    if (made.error().code == Code::already_exists) return exists(ask, std::move(wish));
    ask->refuse(made.error());
  });
}

// Creating a job with a chosen id twice is creating it once.
void Api::exists(Ask ask, runtime::NewJobRequest wish) {
  ask->id = wish.job.text;
  read(ask, [this, ask, wish = std::move(wish)](runtime::Runtime::Read& read) {
    if (read.state.agent != wish.agent || read.state.input != wish.input) {
      return ask->refuse({Code::already_exists,
                          "the job " + wish.job.text + " was created with another " +
                              (read.state.agent != wish.agent ? "agent (" + read.state.agent + ")"
                                                              : std::string("input")) +
                              "; use another id for a new job"});
    }
    created(ask, wish.job, 200);
  });
}

// `input_erased`: the job had been made before, and its input is erased, so that it was not compared.
void Api::created(Ask ask, const JobId& job, int status, std::vector<Member> more) {
  ask->id = job.text;
  const Duration most = wait_of(ask->query).value_or(Duration(0));
  wait(ask, job, most,
       [this, ask, status, more = std::move(more), most,
        job](const std::shared_ptr<Waiting>& waiting) {
         read_in_turn(
             ask, job,
             [this, ask, status, more, most, waiting](Result<runtime::Runtime::Read> read) {
               if (!read) {
                 // The job is there, so nothing may be said that promises that nothing was changed.
                 waiting->over = true;
                 return ask->refuse({Code::unknown_outcome, "the job " + ask->id +
                                                                " exists but cannot be read now: " +
                                                                read.error().message});
               }
               const engine::JobStatus stands = read->state.status;
               const bool rests = engine::is_terminal(stands) || engine::is_blocked(stands);
               if (most.count() > 0 && !rests && !waiting->last) return waiting->not_yet();
               waiting->over = true;
               Value shown = job_json(*read);
               for (const auto& [name, value] : more) shown = shown.with(name, value);
               if (shown["forked_from"].is_object()) {
                 shown = shown.with("kept", engine::imported_nodes(read->state));
               }
               ask->answer(status, std::move(shown), target({"api", "jobs", ask->id}, {}));
             });
       });
}

// ---------------------------------------------------------------- one job

void Api::job(Ask ask) {
  if (auto known = ask->query.only({}); !known) return ask->refuse(known.error());
  with_agents([this, ask] { show_job(ask); });
}

void Api::show_job(Ask ask) {
  read(ask, [this, ask](runtime::Runtime::Read& read) {
    Value body = job_json(read);
    const Error* why = runtime_.refuses(read.row.id);
    const bool versions = why != nullptr && (why->code == Code::needs_version ||
                                             why->code == Code::execution_version_mismatch);
    if (versions && store::may_run(read.row.status)) {
      body = body.with("needs_version", why->message);
    } else if (const auto missing = runtime_.missing(read.row);
               options_.runs && !missing.empty() && store::may_run(read.row.status)) {
      body = body.with("needs_version", "this process does not have " + missing.front());
    }
    ask->answer(200, std::move(body));
  });
}

void Api::trace(Ask ask) {
  if (auto known = ask->query.only({}); !known) return ask->refuse(known.error());
  read(ask, [ask](runtime::Runtime::Read& read) { ask->answer(200, trace_body(read)); });
}

void Api::verify(Ask ask) {
  if (auto known = ask->query.only({"key"}); !known) return ask->refuse(known.error());
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  std::vector<PublicKey> keys;
  for (const std::string& text : ask->query.all("key")) {
    auto key = public_key_from_text(text);
    if (!key) return ask->refuse(key.error());
    keys.push_back(*key);
  }
  turns_.take(ask->request.by, [this, ask, id = *job,
                                keys = std::move(keys)](ReadTurns::Turn turn) mutable {
    if (auto may = ask->may_grow_large(); !may) return ask->refuse(may.error());
    store_.load(id, 1,
                [this, alive = std::weak_ptr(alive_), ask, id, turn = std::move(turn),
                 keys = std::move(keys)](Result<store::Loaded> loaded) mutable {
                  if (!loaded && loaded.error().code == Code::not_found) {
                    return ask->refuse(no_job(id.text));
                  }
                  if (!loaded) return ask->refuse(loaded.error());
                  if (!alive.lock()) return;
                  const auto body =
                      std::make_shared<VerifyBody>(id, std::move(*loaded), std::move(keys));
                  async::in_portions(
                      loop_, steady_, [body] { return body->next(); },
                      [ask, body, turn = std::move(turn)] { ask->answer(200, body->take()); });
                });
  });
}

void Api::replay(Ask ask) {
  if (auto known = ask->query.only({"at"}); !known) return ask->refuse(known.error());
  const auto at = ask->query.number("at");
  if (!at) return ask->refuse(at.error());
  read(ask, [this, alive = std::weak_ptr(alive_), ask, at = *at](runtime::Runtime::Read& read) {
    if (!alive.lock()) return;
    const std::uint64_t last = read.events.empty() ? 0 : read.events.back().seq;
    const std::uint64_t seq = at.value_or(last);
    if (seq < 1 || seq > last) {
      return ask->refuse({Code::input_invalid, "\"at\" must be from 1 to " + std::to_string(last) +
                                                   ", the last event of this job"});
    }
    const auto body = std::make_shared<ReplayBody>(std::move(read), seq);
    async::in_portions(
        loop_, steady_, [body] { return body->next(); },
        [ask, body, turn = ask->turn.lock()] {
          auto state = body->take();
          if (!state) return ask->refuse(state.error());
          ask->answer(200, std::move(*state));
        });
  });
}

// ---------------------------------------------------------------- events

void Api::events(Ask ask) {
  struct Wish {
    std::uint64_t after = 0;
    std::size_t limit = kEventsDefault;
    std::optional<EventClass> of_class;
    bool effects = false;
    std::string type;
    Duration wait{};
  };
  auto wish = [&]() -> Result<Wish> {
    Wish w;
    AE_TRY(ask->query.only({"after", "limit", "class", "type", "wait"}));
    AE_ASSIGN(const auto after, ask->query.number("after"));
    w.after = after.value_or(0);
    AE_ASSIGN(w.limit, ask->query.limit(kEventsDefault, kEventsMax));
    const auto* of_class = ask->query.find("class");
    w.effects = of_class && *of_class == "effect";
    if (!w.effects) {
      AE_ASSIGN(w.of_class, class_of(of_class));
    }
    if (const auto* type = ask->query.find("type"); type && !type->empty()) {
      AE_TRY(is_event_type(*type));
      w.type = *type;
    }
    AE_ASSIGN(w.wait, wait_of(ask->query));
    return w;
  }();
  if (!wish) return ask->refuse(wish.error());
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  wait(ask, *job, wish->wait,
       [this, ask, job = *job, wish = *wish](const std::shared_ptr<Waiting>& waiting) {
         // The kind of an effect follows from what stands before it.
         const std::uint64_t from = wish.effects ? 0 : wish.after;
         turns_.take(ask->request.by, [this, ask, job, wish, from, waiting](ReadTurns::Turn turn) {
           if (auto may = ask->may_grow_large(); !may) {
             waiting->over = true;
             return ask->refuse(may.error());
           }
           read_log(job, from, [ask, job, wish, waiting, turn = std::move(turn)](Result<Log> log) {
             if (!log) {
               waiting->over = true;
               return ask->refuse(log.error());
             }
             std::vector<Value> found;
             Value next;
             engine::EffectKinds kinds;
             for (const Event& event : log->events) {
               const std::string_view kind = wish.effects ? kinds.kind_of(event) : "";
               if (event.seq <= wish.after || (wish.effects && kind.empty())) continue;
               if (wish.of_class && class_of(event) != *wish.of_class) continue;
               if (!wish.type.empty() && event_name(event) != wish.type) continue;
               if (found.size() == wish.limit) {
                 next = found.back()["seq"];
                 break;
               }
               found.push_back(envelope(job, event));
               if (wish.effects) found.back() = found.back().with("kind", kind);
             }
             const bool ended = is_terminal(log->row.status);
             const bool answers =
                 !found.empty() || wish.wait.count() == 0 || waiting->last || ended;
             if (!answers) return waiting->not_yet();
             waiting->over = true;
             ask->answer(200, Value::object({{"ended", ended},
                                             {"events", Value::array(std::move(found))},
                                             {"next", next}}));
           });
         });
       });
}

void Api::read_log(const JobId& job, std::uint64_t after, async::Done<Result<Log>> done) {
  Mark from;
  if (const auto mark = marks_.find(job); mark != marks_.end() && mark->second.seq <= after) {
    from = mark->second;
  }
  store_.load(job, from.seq + 1,
              [this, alive = std::weak_ptr(alive_), job, from, after,
               done = std::move(done)](Result<store::Loaded> loaded) mutable {
                if (!loaded && loaded.error().code == Code::not_found) {
                  return done(std::unexpected(no_job(job.text)));
                }
                if (!loaded) return done(std::unexpected(loaded.error()));
                const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
                  for (const Blob& blob : loaded->blobs) {
                    if (blob.hash == hash) return blob.bytes;
                  }
                  return fail(Code::log_corrupt, "a blob is missing: " + to_hex(hash));
                };
                Log log{std::move(loaded->row), {}};
                Mark mark = from;
                const auto read = [&]() -> Status {
                  for (const std::string& bytes : loaded->commits) {
                    AE_ASSIGN(Opened opened, open(job, bytes, mark.head, blobs));
                    if (opened.first_seq != mark.seq + 1) {
                      return fail(Code::log_corrupt,
                                  "event " + std::to_string(mark.seq + 1) + " is missing");
                    }
                    mark = {opened.last_seq, opened.head};
                    for (Event& event : opened.events) log.events.push_back(std::move(event));
                  }
                  const bool is_end = mark.seq == log.row.last_seq && mark.head == log.row.head;
                  if (is_end || (from.seq == 0 && mark.seq >= log.row.last_seq)) return {};
                  return fail(Code::log_corrupt,
                              "the log ends at event " + std::to_string(mark.seq) +
                                  ", the job's row has " + std::to_string(log.row.last_seq));
                }();
                // It may be another log than the one that was read to there: that job was deleted, and this one has its id.
                if (!read && from.seq > 0 && alive.lock()) {
                  marks_.erase(job);
                  return read_log(job, after, std::move(done));
                }
                if (!read) return done(std::unexpected(read.error()));
                if (alive.lock()) {
                  if (marks_.size() >= kMarksMax) marks_.clear();
                  marks_[job] = mark;
                }
                done(std::move(log));
              });
}

}  // namespace ae::api
