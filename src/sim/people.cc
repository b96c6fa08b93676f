// Errands: asking, waiting for the answer, asking again.
#include "sim/people.h"

#include "json/json.h"

namespace ae::sim {

using namespace std::chrono_literals;

struct People::Errand {
  JobId job;
  engine::Act act;
  int tries = 0;
  std::uint64_t asked = 0;  // the number of the newest question
  bool over = false;
  std::string name;
  std::function<void()> then;
};

struct People::Birth {
  runtime::NewJobRequest request;
  std::uint64_t asked = 0;
  bool over = false;
};

struct People::Forking {
  runtime::ForkRequest request;
  int tries = 0;
  std::uint64_t asked = 0;
  bool over = false;
  std::function<void(std::vector<Value>)> then;
};

std::optional<std::size_t> People::any_worker() {
  const std::size_t first = world_.chance().below(world_.workers());
  for (std::size_t i = 0; i < world_.workers(); ++i) {
    const std::size_t worker = (first + i) % world_.workers();
    if (world_.lives(worker)) return worker;
  }
  return std::nullopt;
}

void People::create(runtime::NewJobRequest request) {
  wanted_++;
  busy_++;
  auto birth = std::make_shared<Birth>();
  birth->request = std::move(request);
  try_birth(birth);
}

void People::try_birth(const std::shared_ptr<Birth>& birth) {
  if (birth->over) return;
  const std::uint64_t question = ++birth->asked;
  if (auto worker = any_worker()) {
    world_.create(*worker, birth->request, [this, birth](Result<runtime::Created> created) {
      if (birth->over) return;
      const bool there = created || created.error().code == Code::already_exists;
      if (!there) return;  // asked again below
      if (created && created->job != birth->request.job) {
        world_.report().violate("D3 one idempotency key makes one job", birth->request.job,
                                "it was answered with " + created->job.text);
      }
      birth->over = true;
      busy_--;
      created_.push_back(birth->request.job);
    });
  }
  world_.loop().after(world_.chance().between(2s, 6s), [this, birth, question] {
    if (birth->asked == question) try_birth(birth);
  });
}

void People::fork(runtime::ForkRequest request, int tries,
                  std::function<void(std::vector<Value>)> then) {
  const auto seen = world_.witness().jobs().find(request.origin);
  const std::uint64_t events = seen == world_.witness().jobs().end() ? 0 : seen->second.events;
  forks_.emplace(request.job, ForkAsk{request, events});
  busy_++;
  try_fork(
      std::make_shared<Forking>(Forking{std::move(request), tries, 0, false, std::move(then)}));
}

void People::try_fork(const std::shared_ptr<Forking>& forking) {
  if (forking->over) return;
  if (forking->tries-- <= 0) {
    forking->over = true;
    busy_--;
    return;
  }
  const std::uint64_t question = ++forking->asked;
  if (auto worker = any_worker()) {
    world_.fork(*worker, forking->request, [this, forking](Result<runtime::Forked> answer) {
      fork_answered(forking, std::move(answer));
    });
  }
  world_.loop().after(world_.chance().between(2s, 6s), [this, forking, question] {
    if (forking->asked == question) try_fork(forking);
  });
}

void People::fork_answered(const std::shared_ptr<Forking>& forking,
                           Result<runtime::Forked> answer) {
  if (forking->over) return;
  const Code code = answer ? Code{} : answer.error().code;
  const bool made = answer ? answer->repeated.empty() : code == Code::already_exists;
  const bool never = code == Code::input_invalid;  // no such event, or it has not failed
  if (!answer && !made && !never) return;          // asked again
  forking->over = true;
  busy_--;
  if (made) {
    forked_.push_back(forking->request.job);
    const std::string& origin = world_.witness().jobs().at(forking->request.origin).status;
    const bool over = origin == "completed" || origin == "failed" || origin == "cancelled";
    world_.report().mark(over ? "fork.origin_ended" : "fork.origin_goes_on");
  }
  world_.say("  fork " + forking->request.job.text + (made ? ": made" : ": refused"));
  world_.report().mark(made ? "fork.made" : never ? "fork.impossible" : "fork.not_agreed");
  if (!never && forking->then) {
    forking->then(answer ? std::move(answer->repeated) : std::vector<Value>());
  }
}

void People::remember(const JobId& job, const engine::Act& act) {
  asked_[job].try_emplace(act.id, Asked{act, world_.loop().now(), {}});
}

void People::act(const JobId& job, engine::Act act, int tries, std::function<void()> then) {
  if (act.id.empty()) act.id = "act-" + std::to_string(++last_id_);
  std::string name = act.id;
  if (!under_way_.emplace(job, name).second) return;
  remember(job, act);
  busy_++;
  try_errand(std::make_shared<Errand>(
      Errand{job, std::move(act), tries, 0, false, std::move(name), std::move(then)}));
}

void People::try_errand(const std::shared_ptr<Errand>& errand) {
  if (errand->over) return;
  if (errand->tries-- <= 0) return give_up(errand);
  const std::uint64_t question = ++errand->asked;
  if (auto worker = any_worker()) {
    world_.act(*worker, errand->job, errand->act,
               [this, errand](Result<Value> answer) { answered(errand, std::move(answer)); });
  }
  world_.loop().after(world_.chance().between(3s, 6s), [this, errand, question] {
    if (errand->asked == question) try_errand(errand);
  });
}

void People::give_up(const std::shared_ptr<Errand>& errand) {
  if (std::exchange(errand->over, true)) return;
  busy_--;
  under_way_.erase({errand->job, errand->name});
  if (errand->then) errand->then();
}

void People::answered(const std::shared_ptr<Errand>& errand, Result<Value> answer) {
  if (answer) {  // also one that comes when nobody waits for it any more: it was said
    world_.say("  " + errand->job.text + ": " + canonical(errand->act.to_json()) + " → " +
               canonical(*answer));
    acks_.push_back({errand->job, errand->act, *answer});
    Asked& asked = asked_[errand->job].at(errand->act.id);
    if (!asked.acked) asked.acked = world_.loop().now();
    world_.report().mark("people.acknowledged");
    if ((*answer)["duplicate"].is_bool()) world_.report().mark("people.duplicate");
    if ((*answer)["accepted"].is_bool()) world_.report().mark("people.accepted_in_inbox");
    return give_up(errand);
  }
  switch (answer.error().code) {
    case Code::job_terminal:
    case Code::not_in_doubt:
    case Code::input_invalid:
    case Code::not_paused:
      return give_up(errand);
    case Code::plan_invalid:
      world_.report().mark("plan.invalid");
      return give_up(errand);
    case Code::call_pending:
      world_.report().mark("plan.too_early");
      return;  // asked again
    case Code::not_settled:
      world_.report().mark("people.not_settled");
      return give_up(errand);  // whoever looks around comes back
    case Code::wait_mismatch:
    case Code::not_found:  // nobody is asked for this approval, or the job is not there yet
      world_.report().mark("people.too_early");
      return;  // too early: asked again
    default:
      return;
  }
}

// There was no call: what was to undo something could not be made out. It is done by hand, or never; to try again, which
// somebody asks for too, changes nothing.
void People::resolve_undeclared(const JobId& job, engine::Act act) {
  const std::uint64_t draw = manners_.hands ? world_.chance().below(3) : 0;
  act.resolution = draw == 0 ? "fail" : draw == 1 ? "happened" : "not_happened";
  world_.report().mark("people.undo_by_hand_" + act.resolution);
  this->act(job, std::move(act), 1);
}

void People::resolve(const JobId& job, const std::string& key) {
  engine::Act act{.kind = engine::Act::Kind::resolve, .by = "someone", .idempotency_key = key};
  act.looked_at = world_.clock().now();
  act.id = "resolve-" + key.substr(0, 12) + "-" + std::to_string(++last_id_);
  if (!world_.witness().declared(key)) return resolve_undeclared(job, std::move(act));
  const KeyRecord* record = world_.outside().find(key);
  if (world_.chance().one_in(manners_.say_fail_one_in)) {
    act.resolution = "fail";
  } else if (record && record->effects > 0) {
    act.resolution = "happened";
    act.result = record->result;
  } else if (!manners_.impatient && record && record->in_transit > 0) {
    return;  // it may still arrive: look again later
  } else {
    act.resolution = "not_happened";
  }
  world_.report().mark("people.resolve_" + act.resolution);
  this->act(job, std::move(act), 1);
}

// Whoever is asked for an approval says yes or no, by the list's id or by the wait's key, and sometimes says it twice.
void People::answer(const JobId& job, const std::string& key, const OpenWait& wait,
                    const Glance& look) {
  if (!world_.chance().one_in(look.answer_one_in)) return;
  std::string decision(look.decision);
  if (decision.empty()) decision = world_.chance().one_in(3) ? "reject" : "approve";
  engine::Act act{.kind = engine::Act::Kind::signal,
                  .id = decision + "-" + key,
                  .by = "somebody",
                  .payload = Value::object({{"decision", decision}, {"note", key}})};
  // Half of the forms are taken as they stand, always the same ones: who asks again says the same.
  const auto digit = static_cast<unsigned char>(key.back()) + static_cast<unsigned char>(key[6]);
  if (wait.question && decision == "approve" && look.decision.empty() && digit % 2 == 0) {
    act.arguments = Value::object({{"n", 1 + digit % 9}});
  }
  if (!wait.question && world_.chance().one_in(2)) {
    act.approval = wait.approval;
  } else {
    act.correlation_key = key;
  }
  act.id += act.approval.empty() ? "-by-key" : "-by-id";
  world_.report().mark("people." + decision);
  this->act(job, std::move(act), 2);
}

// What the job changed is not as it left it, or nobody could look: somebody says whether that is well.
void People::confirm(const JobId& job, const Seen& seen, const Glance& look) {
  using Kind = engine::Act::Kind;
  const std::string nth = std::to_string(++last_id_);
  if (seen.parked == "verifier_unreachable" && look.confirm.empty() && world_.chance().one_in(2)) {
    world_.report().mark("people.look_again");
    return act(job, {.kind = Kind::resume, .id = "look-again-" + nth, .by = "look-again-" + nth},
               2);
  }
  for (const std::string& step : seen.raised) {
    if (!world_.chance().one_in(look.confirm_one_in)) continue;
    std::string says(look.confirm);
    if (says.empty()) says = world_.chance().one_in(4) ? "fail" : "accept";
    world_.report().mark("people.change_" + says);
    engine::Act act;
    act.id.append(says).append("-").append(step).append("-").append(nth);
    act.by = act.id;
    if (world_.chance().one_in(3)) {
      act.kind = Kind::signal;
      act.approval = step;
      act.payload = Value::object({{"decision", says == "accept" ? "approve" : "reject"}});
    } else {
      act.kind = Kind::resolve;
      act.step_id = step;
      act.resolution = says;
    }
    this->act(job, std::move(act), 2);
  }
}

// Somebody lets the job use more: too little, enough for a while, or, when all has to end, enough for ever.
void People::raise(const JobId& job, const Seen& seen, const Glance& look) {
  if (look.raise_one_in == 0 || !world_.chance().one_in(look.raise_one_in)) return;
  std::vector<Member> limits;
  for (const auto& [name, most] : seen.budget.members()) {
    if (name == "wall") {
      limits.emplace_back(
          name, look.waits ? "10000h" : std::to_string(world_.chance().below(60) + 1) + "s");
    } else if (most.is_integer() && name != "soft") {
      const std::uint64_t some = world_.chance().below(name == "tokens" ? 9'000 : 9) + 1;
      limits.emplace_back(name, look.waits ? 1'000'000'000 : some);
    }
  }
  const std::string id = "raise-" + std::to_string(++last_id_);
  world_.report().mark("people.raise");
  act(job,
      {.kind = engine::Act::Kind::budget,
       .id = id,
       .by = id,
       .payload = Value::object(std::move(limits))},
      2);
}

void People::look_around(const Glance& look) {
  for (const auto& [job, seen] : world_.witness().jobs()) {
    if (seen.parked == "budget_exceeded") raise(job, seen, look);
    if (seen.parked == "worn_out") {  // its process died: it gets one more try
      const std::string id = "one-more-try-" + std::to_string(++last_id_);
      act(job, {.kind = engine::Act::Kind::resume, .id = id, .by = id}, 1);
    } else if (look.waits && seen.paused) {
      act(job, {.kind = engine::Act::Kind::resume, .id = "late-resume", .by = "late-resume"}, 1);
    }
    if (!seen.raised.empty()) {
      confirm(job, seen, look);
    } else if (seen.parked ==
               "verifier_unreachable") {  // all is accepted: the job is to look again
      const std::string id = "look-again-" + std::to_string(++last_id_);
      act(job, {.kind = engine::Act::Kind::resume, .id = id, .by = id}, 2);
    }
    for (const auto& [key, wait] : seen.open_waits) {
      if (key.starts_with("resolve/")) {
        resolve(job, key.substr(8, 64));
      } else if (!wait.approval.empty()) {
        answer(job, key, wait, look);
      } else if (look.waits && wait.type == "message") {
        const std::string id = "late-" + key;
        act(job,
            {.kind = engine::Act::Kind::message,
             .id = id,
             .by = "someone",
             .payload = Value::object({{"message", id}}),
             .channel = wait.channel},
            2);
      } else if (look.waits && (wait.type == "signal" || wait.type == "webhook")) {
        act(job,
            {.kind = engine::Act::Kind::signal,
             .id = "late-" + key,
             .by = "someone",
             .correlation_key = key,
             .payload = Value::object({{"late", true}})},
            2);
      }
    }
  }
}

}  // namespace ae::sim
