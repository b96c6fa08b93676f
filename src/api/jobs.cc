// Jobs: create, list and read them: the current state, the trace, past states, the verification.
#include "api/jobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "api/job_filter.h"
#include "api/job_gauges.h"
#include "api/operations.h"
#include "api/read.h"
#include "api/views.h"
#include "base/trace_context.h"
#include "inspect/aliases.h"
#include "inspect/failure_location.h"
#include "inspect/summary.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::api {
namespace {

Value labels_value(const std::vector<std::pair<std::string, std::string>>& labels) {
  std::vector<Member> members;
  members.reserve(labels.size());
  for (const auto& [key, value] : labels) members.emplace_back(key, value);
  return Value::object(std::move(members));
}

Result<std::vector<std::pair<std::string, std::string>>> labels_of(const Value& labels) {
  std::vector<std::pair<std::string, std::string>> out;
  if (labels.is_null()) return out;
  if (!labels.is_object() || labels.size() > 64) {
    return fail(Code::input_invalid, "\"labels\" must be an object of at most 64 strings");
  }
  for (const auto& [name, value] : labels.members()) {
    if (!value.is_string() || name.empty() || name.size() > 256 || value.as_string().size() > 256) {
      return fail(Code::input_invalid,
                  "label \"{}\" must be a string; names and values can have at most 256 bytes",
                  name.substr(0, 64));
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

void sort_each_once(std::vector<std::string>& names) {
  std::ranges::sort(names);
  const auto twice = std::ranges::unique(names);
  names.erase(twice.begin(), twice.end());
}

// The deadline of a job: an instant, or a duration from now. Fails with input_invalid.
struct Deadline {
  Instant at;
  std::string text;  // normalized
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

// The fields of a request that differ from their defaults, normalized: equal requests give equal
// values.
Value normalized_request(const Value& body, const runtime::NewJobRequest& params,
                         const agents::Agent& agent, const std::string& deadline,
                         const engine::Limits& budget) {
  std::vector<Member> requested;
  if (budget.any()) requested.emplace_back(field::budget, to_json(budget));
  if (!deadline.empty()) requested.emplace_back(field::deadline, deadline);
  if (params.priority != 0) requested.emplace_back(field::priority, params.priority);
  if (!body[field::queue].is_null() && !(params.queue.empty() && agent.queue.empty())) {
    requested.emplace_back(field::queue, body[field::queue]);
  }
  if (auto needed = params.required_capabilities; !needed.empty()) {
    sort_each_once(needed);
    requested.emplace_back(field::required_capabilities,
                           Value::array(std::vector<Value>(needed.begin(), needed.end())));
  }
  return requested.empty() ? Value() : Value::object(std::move(requested));
}

// The budget in a request. Fails with input_invalid.
Result<engine::Limits> budget_of(const Value& body, const engine::Plan& plan) {
  auto budget = engine::parse_limits(body);
  if (!budget) return std::unexpected(std::move(budget).error().with_context("\"budget\""));
  if (budget->cost_micros && !plan.all_models_priced()) {
    return fail(Code::input_invalid, "a cost limit needs a `price` for every model of the agent");
  }
  return budget;
}

// The scheduling options of a request. REQUIRES: its key and id are known.
Status parse_job_options(const Value& body, const agents::Agent& agent, Instant now,
                         runtime::NewJobRequest& params) {
  if (const Value& priority = body[field::priority]; !priority.is_null()) {
    const bool fits = priority.is_integer() && std::abs(priority.as_int()) <= store::kPriorityMax;
    if (!fits) {
      return fail(Code::input_invalid, "\"priority\" must be an integer from -{0} to {0}",
                  store::kPriorityMax);
    }
    params.priority = priority.as_int();
  }
  params.queue = body[field::queue].is_null() ? agent.queue : std::string(body.text(field::queue));
  if (!params.queue.empty() || !body[field::queue].is_null()) {
    if (!agents::is_capability(params.queue)) {
      return fail(Code::input_invalid,
                  "\"queue\" must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    }
  }
  if (params.queue == store::kDefaultQueue) params.queue.clear();
  AE_ASSIGN(params.required_capabilities, capabilities_of(body[field::required_capabilities]));
  std::string deadline;
  if (!body[field::deadline].is_null()) {
    AE_ASSIGN(Deadline requested, deadline_of(body.text(field::deadline), now));
    // With a key or id it may be the retry of a request that was in time: then its job must be
    // found.
    const bool may_repeat = !params.idempotency_key.empty() || !params.job.empty();
    if (requested.at <= now && !may_repeat) {
      return fail(Code::input_invalid, "the \"deadline\" {} has passed", requested.text);
    }
    params.deadline = requested.at;
    deadline = std::move(requested.text);
  }
  engine::Limits budget;
  if (!body[field::budget].is_null()) {
    AE_ASSIGN(budget, budget_of(body[field::budget], *params.plan));
    AE_ASSIGN(params.budget, lower_limits(params.plan->budget, budget));
  }
  params.explicit_options = normalized_request(body, params, agent, deadline, budget);
  const auto& also = agent.required_capabilities;
  params.required_capabilities.insert(params.required_capabilities.end(), also.begin(), also.end());
  sort_each_once(params.required_capabilities);
  return {};
}

// Contains the text in its id, agent, key or labels.
bool matches_text(const store::JobRow& row, const std::string& text) {
  const auto contains = [&](const std::string& in) { return in.find(text) != in.npos; };
  return contains(row.id.text) || contains(row.agent) || contains(row.idempotency_key) ||
         std::ranges::any_of(row.labels, [&](const auto& l) { return contains(l.second); });
}

// Has the job ended, or does it wait for an event or an operator?
bool is_idle_status(std::string_view status) {
  return store::has_ended(status) || store::is_blocked(status);
}

JobFacts job_facts(ApiContext& api, const JobId& job) {
  JobFacts facts{.now = api.store.now(),
                 .registry = api.registry.copy(),
                 .has_no_owner = api.has_no_owner(),
                 .runs = api.options.runs,
                 .offered = api.runtime.offered()};
  if (api.store.owned() && api.options.runs && api.runtime.options().may_claim) {
    facts.only_offer = own_offer(api.runtime);
  }
  const Error* const why = api.runtime.refusal_of(job);
  if (why != nullptr &&
      (why->code == Code::needs_version || why->code == Code::execution_version_mismatch)) {
    facts.refusal = why->message;
  }
  return facts;
}

}  // namespace

ListedJob listed_job(ApiContext& api, store::JobRow row) {
  ListedJob job{.row = std::move(row), .live_summary = {}};
  if (const engine::State* const live = api.runtime.state_of(job.row.id); live != nullptr) {
    job.live_summary = engine::summary_view(*live);
  }
  return job;
}

Value listed_job_json(const ListedJob& job, const store::Registry& registry) {
  const store::JobRow& row = job.row;
  std::vector<Member> members{{field::agent, row.agent},
                              {"created_at", to_text(row.created_at)},
                              {"id", row.id.text},
                              {field::labels, labels_value(row.labels)},
                              {field::priority, row.priority},
                              {field::queue, row.queue},
                              {"seq", row.last_seq},
                              {"status", row.status},
                              {"updated_at", to_text(row.updated_at)}};
  if (!row.idempotency_key.empty())
    members.emplace_back(field::idempotency_key, row.idempotency_key);
  if (row.not_before) members.emplace_back(field::not_before, to_text(*row.not_before));
  if (row.wake_at) members.emplace_back("wake_at", to_text(*row.wake_at));
  if (row.forked_from && !row.forked_from->empty()) {
    members.emplace_back(field::forked_from, *row.forked_from);
  }
  Value summary = Value::object({});
  if (job.live_summary) {
    summary = *job.live_summary;
  } else if (row.summary) {
    if (auto stored = parse_json(row.summary->body); stored && stored->is_object()) {
      summary = *std::move(stored);
    }
  }
  for (const auto& [name, value] : summary.members()) members.emplace_back(name, value);
  if (row.summary) members.emplace_back("changed_at", to_text(row.summary->changed_at));
  if (const std::string_view plan = summary.text(field::plan_hash); !plan.empty()) {
    const store::AgentVersion* const version = registry.find_version_with_plan(row.agent, plan);
    members.emplace_back("agent_version", version == nullptr ? Value() : Value(version->version));
  }
  return Value::object(std::move(members));
}

std::string cursor_of(const store::JobRow& row) {
  return fmt::format("{}@{}", row.id.text, row.number);
}

void apply_cursor(std::string_view cursor, store::Filter& filter) {
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

namespace {

struct Search {
  store::Filter filter;
  std::size_t wanted = 0;
  std::string text;
  std::size_t examined = 0;
  std::string last_cursor;  // of the last job that was examined
  std::vector<store::JobRow> found;
};

// `last`: there are no more rows in the store.
void answer_found(ApiContext& api, const RequestPtr& ctx, Search& search, bool last) {
  const bool more = search.found.size() > search.wanted;
  if (more) search.found.resize(search.wanted);
  Value next;
  if (more) {
    next = list_cursor(search.found.back(), search.filter.order);
  } else if (!last) {
    next = search.last_cursor;
  }
  std::vector<ListedJob> jobs;
  jobs.reserve(search.found.size());
  for (store::JobRow& row : search.found) jobs.push_back(listed_job(api, std::move(row)));
  answer_large(api, ctx,
               [jobs = std::move(jobs), registry = api.registry.copy(), next = std::move(next),
                examined = std::uint64_t{search.examined}] {
                 std::vector<Value> items;
                 items.reserve(jobs.size());
                 for (const ListedJob& job : jobs) {
                   items.push_back(listed_job_json(job, *registry));
                 }
                 return Value::object({{"jobs", Value::array(std::move(items))},
                                       {"more", !next.is_null()},
                                       {"next_cursor", next},
                                       {"scanned", examined}});
               });
}

void search_jobs(ApiContext& api, RequestPtr ctx, std::shared_ptr<Search> search) {
  store::Filter filter = search->filter;
  api.store.query(std::move(filter), [&api, alive = api.alive.watch(), ctx,
                                      search](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ctx->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ctx->refuse(rows.error());
    const bool last = rows->size() < search->filter.limit;
    search->examined += rows->size();
    for (store::JobRow& row : *rows) {
      search->filter.after = row.id.text;
      search->filter.after_number = row.number;
      if (search->filter.order == store::JobOrder::changed) {
        search->filter.after_changed_at = row.summary->changed_at;
      }
      if (&row == &rows->back()) search->last_cursor = list_cursor(row, search->filter.order);
      if (matches_text(row, search->text)) search->found.push_back(std::move(row));
    }
    const bool more = search->found.size() > search->wanted;
    const bool enough = more || search->examined >= kSearchMax;
    if (!alive) return;
    if (!last && !enough) return search_jobs(api, ctx, search);
    answer_found(api, ctx, *search, last);
  });
}

void list_jobs(ApiContext& api, RequestPtr ctx) {
  if (ctx->query.find(engine::plain_name::kStalled)) return list_stuck_jobs(api, std::move(ctx));
  if (ctx->query.find(field::in_doubt)) return list_in_doubt_jobs(api, std::move(ctx));
  if (ctx->query.find(field::parent)) return list_children(api, std::move(ctx));
  const auto filter = job_filter(ctx->query, api.store.now());
  if (!filter) return ctx->refuse(filter.error());
  const std::string* q = ctx->query.find("q");
  auto search = std::make_shared<Search>();
  search->filter = *filter;
  search->wanted = filter->limit;
  if (q) search->text = *q;
  // One more row tells whether there is a next page. A text is searched here, page by page.
  search->filter.limit = search->text.empty() ? search->wanted + 1 : kJobsMax;
  search_jobs(api, std::move(ctx), std::move(search));
}

void list_forks(ApiContext& api, RequestPtr ctx) {
  auto search = std::make_shared<Search>();
  const auto job = [&]() -> Result<JobId> {
    if (const auto* cursor = ctx->query.find("cursor")) apply_cursor(*cursor, search->filter);
    AE_ASSIGN(search->wanted, ctx->query.limit(100, kJobsMax));
    auto id = job_id_from_text(ctx->id);
    if (!id) return fail(Code::not_found, id.error().message);
    return id;
  }();
  if (!job) return ctx->refuse(job.error());
  search->filter.forked_from = job->text;
  search->filter.limit = search->wanted + 1;
  api.store.load_window(
      *job, {.events_max = 1},
      [&api, alive = api.alive.watch(), ctx, search](Result<store::LogWindow> origin) {
        if (!alive) return;
        if (!origin && origin.error().code == Code::not_found) {
          return ctx->refuse(missing_job_error(ctx->id));
        }
        if (!origin) return ctx->refuse(origin.error());
        search_jobs(api, ctx, search);
      });
}

}  // namespace

void operations::jobs(ApiContext& api, RequestPtr ctx) {
  api.agents.when_fresh([&api, ctx] { list_jobs(api, ctx); });
}

// The forks and retries of a job.
void operations::forks(ApiContext& api, RequestPtr ctx) {
  api.agents.when_fresh([&api, ctx] { list_forks(api, ctx); });
}

// ---------------------------------------------------------------- creating

Result<runtime::NewJobRequest> new_job(ApiContext& api, const ApiRequest& request,
                                       const Value& body) {
  runtime::NewJobRequest params;
  if (!api.options.agents) {
    return fail(Code::unsupported,
                "this process has no agents file: send the request to a server that has one");
  }
  AE_ASSIGN(const OfferedAgent* const offer, api.agents.find(body.text(field::agent)));
  const agents::Agent* const agent = offer->agent.get();
  const auto plan = offer->plan;
  params.agent = agent->name;
  params.plan = plan;
  if (const Value* hash = body.find(field::plan_hash); hash && !hash->is_null()) {
    if (*hash != Value(to_hex(plan->hash))) {
      return fail(Code::needs_version,
                  "the process that owns this store runs another version of agent "
                  "\"{}\"; restart it with this file, or start it with `serve --watch`",
                  params.agent);
    }
  }
  const Value* input = body.find(field::input);
  params.input = input ? *input : Value::object({});
  if (agent->input_schema) {
    AE_ASSIGN(const Schema schema, Schema::compile(*agent->input_schema));
    if (auto valid = schema.check(params.input); !valid) {
      return std::unexpected(
          std::move(valid).error().with_context(fmt::format("the input of {}", params.agent)));
    }
  }
  AE_ASSIGN(params.labels, labels_of(body[field::labels]));
  for (const auto& [key, value] : agent->labels) {
    const auto same = [&](const auto& own) { return own.first == key; };
    if (std::ranges::find_if(params.labels, same) == params.labels.end()) {
      params.labels.emplace_back(key, value);
    }
  }
  std::ranges::sort(params.labels);
  AE_ASSIGN(params.idempotency_key, idempotency_key(request, body));
  // An empty id comes from an unset variable: each request would create another job.
  if (!body["id"].is_null()) {
    auto id = job_id_from_text(body.text("id"));
    if (!id) return std::unexpected(std::move(id).error().with_context("\"id\""));
    params.job = *std::move(id);
  }
  AE_TRY(parse_job_options(body, *agent, api.store.now(), params));
  if (const auto context = trace_context(request.traceparent, request.tracestate)) {
    params.traceparent = traceparent(context->trace_id, context->parent_id, context->flags);
    params.tracestate = context->state;
  }
  params.start_here = api.options.runs;
  return params;
}

void answer_created(ApiContext& api, RequestPtr ctx, const JobId& job, int status,
                    std::vector<Member> more) {
  ctx->id = job.text;
  const Duration most = wait_parameter(ctx->query).value_or(Duration(0));
  // The job exists, so the error must not promise that nothing was changed.
  const auto refuse_unreadable = [](const RequestPtr& to, LongPoll& long_poll, const Error& error) {
    long_poll.is_done = true;
    to->refuse({Code::unknown_outcome, fmt::format("the job {} exists but cannot be read now: {}",
                                                   to->id, error.message)});
  };
  auto answer_with_job = [&api, ctx, status, more = std::move(more), most, job,
                          refuse_unreadable](const LongPollPtr& long_poll) {
    const bool waits = most.count() > 0 && !long_poll->last;
    // nullopt: the job continues.
    compute_view<std::optional<ApiResponse>>(
        api, ctx, job,
        [more, waits, facts = job_facts(api, job),
         maker = response_maker(api, ctx)](Snapshot& read) -> Result<std::optional<ApiResponse>> {
          if (waits && !is_idle_status(read.row.status)) return std::nullopt;
          Value shown = job_body(read, facts);
          for (const auto& [name, value] : more) shown = shown.with(name, value);
          if (shown[field::forked_from].is_object()) {
            shown = shown.with("kept", engine::imported_nodes(read.state));
          }
          return maker.make(nullptr, std::move(shown));
        },
        [ctx, status, long_poll, refuse_unreadable](Result<std::optional<ApiResponse>> response) {
          if (!response) return refuse_unreadable(ctx, *long_poll, response.error());
          if (!*response) return long_poll->keep_waiting();
          long_poll->is_done = true;
          (*response)->status = status;
          (*response)->location = target({"api", "jobs", ctx->id}, {});
          ctx->done(**std::move(response));
        });
  };
  api.waiting.wait(ctx, job, most,
                   [&api, ctx, alive = api.alive.watch(), job, most, refuse_unreadable,
                    answer_with_job = std::move(answer_with_job)](const LongPollPtr& long_poll) {
                     if (most.count() == 0 || long_poll->last) return answer_with_job(long_poll);
                     // The row has the status; the log, which may be long, is read once, at the
                     // end.
                     api.store.load(job, store::kNoCommits,
                                    [ctx, alive, answer_with_job, long_poll,
                                     refuse_unreadable](Result<store::LoadedJob> loaded) {
                                      if (!alive) return;
                                      if (!loaded)
                                        return refuse_unreadable(ctx, *long_poll, loaded.error());
                                      if (!is_idle_status(loaded->row.status))
                                        return long_poll->keep_waiting();
                                      answer_with_job(long_poll);
                                    });
                   });
}

namespace {

// Creating a job with a chosen id is idempotent.
void answer_existing_job(ApiContext& api, RequestPtr ctx, runtime::NewJobRequest params) {
  const JobId job = params.job;
  compute_state<bool>(
      api, ctx, job,
      [job, agent = std::move(params.agent),
       input = std::move(params.input)](Snapshot& read) -> Result<bool> {
        if (read.state.agent == agent && read.state.input == input) return true;
        const std::string other =
            read.state.agent != agent ? fmt::format("agent ({})", read.state.agent) : field::input;
        return fail(Code::already_exists,
                    "the job {} was created with another {}; use another id for a new job",
                    job.text, other);
      },
      [&api, ctx, job](Result<bool> same) {
        if (!same) return ctx->refuse(same.error());
        answer_created(api, ctx, job, 200);
      });
}

void make_job(ApiContext& api, RequestPtr ctx) {
  auto params = [&]() -> Result<runtime::NewJobRequest> {
    AE_TRY(wait_parameter(ctx->query));
    const Fields fields = std::move(ctx->fields);
    for (const char* name : {field::agent, field::idempotency_key, "id", field::plan_hash,
                             field::queue, field::deadline}) {
      AE_TRY(fields.text(name));
    }
    if (fields[field::agent].is_null()) return fail(Code::input_invalid, "\"agent\" is missing");
    return new_job(api, ctx->request, fields.object());
  }();
  if (!params) return ctx->refuse(params.error());
  api.runtime.create(
      *params, [&api, ctx, params = *params](Result<runtime::CreateResult> made) mutable {
        if (made) {
          std::vector<Member> more;
          if (made->input_erased) more.emplace_back("input_compared", false);
          return answer_created(api, ctx, made->job, made->existing ? 200 : 201, std::move(more));
        }
        if (made.error().code == Code::already_exists)
          return answer_existing_job(api, ctx, std::move(params));
        ctx->refuse(made.error());
      });
}

}  // namespace

void operations::create(ApiContext& api, RequestPtr ctx) {
  api.agents.when_fresh([&api, ctx] { make_job(api, ctx); });
}

// ---------------------------------------------------------------- one job

void operations::job(ApiContext& api, RequestPtr ctx) {
  api.agents.when_fresh([&api, ctx] {
    JobFacts facts = job_facts(api, JobId(ctx->id));
    ctx->view_facts = facts.text();
    read_job_view(api, ctx, [facts = std::move(facts)](Snapshot& read) -> Result<Value> {
      return add_needs_version(job_body(read, facts), read.row, facts);
    });
  });
}

void operations::trace(ApiContext& api, RequestPtr ctx) {
  read_job(api, ctx, [](Snapshot& read) -> Result<Value> { return trace_body(read); });
}

// Its body also depends on rows that have no events, so it has no ETag.
void operations::verify(ApiContext& api, RequestPtr ctx) {
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  std::vector<PublicKey> keys;
  for (const std::string& text : ctx->query.all("key")) {
    auto key = public_key_from_text(text);
    if (!key) return ctx->refuse(key.error());
    keys.push_back(*key);
  }
  compute_loaded<ApiResponse>(
      api, ctx, *job, 1,
      [job = *job, keys = std::move(keys), maker = response_maker(api, ctx)](
          store::LoadedJob&& loaded, const async::Interrupt& interrupt) -> Result<ApiResponse> {
        AE_ASSIGN(Value body, verify_body(job, loaded, keys, interrupt));
        return maker.make(nullptr, std::move(body));
      },
      respond(ctx));
}

}  // namespace ae::api
