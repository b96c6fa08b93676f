// The rules about acknowledged requests: each is in the log, and each wait is completed once.
#include <set>
#include <string>

#include "log/field_names.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

using engine::is_terminal;

void signals_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    const auto key = wait_of(e, ack->request);
    if (!key || ack->answer["duplicate"].is_bool()) continue;
    if (answers_confirmation(e, ack->request)) continue;
    if (completion_of(e, ack->request.id) || is_expired_request(e, ack->request.id)) continue;
    // Another signal for the same wait was accepted first; for a retry, the job returns that one's
    // answer.
    bool is_answered = false;
    for (const Event& event : e.events) {
      const auto* completed = as<WaitCompleted>(event);
      is_answered = is_answered || (completed && completed->correlation_key == *key &&
                                    !or_empty(completed->signal_id).empty());
    }
    if (is_answered) continue;
    checker.fail("the signal {} for {} was accepted and is not in the log", ack->request.id, *key);
  }
}

void cancels_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    if (!ack->request.is<engine::CancelRequest>()) continue;
    bool found = is_expired_request(e, ack->request.id);
    for (const Event& event : e.events) {
      found = found || event.type == EventType::job_cancel_requested;
    }
    checker.fail_if(!found, "the cancel {} was accepted and is not in the log", ack->request.id);
  }
}

void resolutions_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    const auto* const resolve = ack->request.as<engine::ResolveRequest>();
    if (resolve == nullptr || answers_confirmation(e, ack->request)) continue;
    if (completion_of(e, ack->request.id) || is_expired_request(e, ack->request.id)) continue;
    bool is_answered = false;  // by the call itself, or by an earlier request
    for (const Event& event : e.events) {
      const auto* completed = as<WaitCompleted>(event);
      is_answered =
          is_answered ||
          (completed &&
           completed->correlation_key.starts_with("resolve/" + resolve->idempotency_key) &&
           (completed->outcome == "signalled" || completed->outcome == "rejected" ||
            completed->outcome == "cancelled"));
    }
    checker.fail_if(!is_answered, "the resolution {} was accepted and is not in the log",
                    ack->request.id);
  }
}

void waits_resolve_once(const JobEvidence& e, Checker& checker) {
  std::set<std::string, std::less<>> opened, completed;
  for (const Event& event : e.events) {
    if (const auto* wait = as<WaitOpened>(event)) {
      const std::string& key = wait->correlation_key;
      checker.fail_if(!opened.insert(key).second, "{} was opened twice", key);
    } else if (const auto* end = as<WaitCompleted>(event)) {
      const std::string& key = end->correlation_key;
      checker.fail_if(!opened.contains(key), "{} was completed, never opened", key);
      checker.fail_if(!completed.insert(key).second, "{} was completed twice", key);
    }
  }
  checker.fail_if(is_terminal(e.state.status) && opened.size() != completed.size(),
                  "a wait is open in an ended job");
}

constexpr Rule kRequestRules[] = {
    {"N1 an accepted signal is never lost", signals_are_kept},
    {"N1 an accepted cancel is never lost", cancels_are_kept},
    {"N1 an accepted resolution is never lost", resolutions_are_kept},
    {"N5 a wait is completed once", waits_resolve_once},
};

}  // namespace

std::span<const Rule> request_rules() { return kRequestRules; }

}  // namespace ae::sim
