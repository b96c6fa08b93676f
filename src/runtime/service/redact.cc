#include "runtime/service/redact.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/heart/ingest.h"
#include "engine/heart/side_record.h"
#include "engine/loop/summaries.h"
#include "engine/state/retained_value.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/redacted.h"
#include "log/seal.h"
#include "runtime/log.h"
#include "runtime/row.h"
#include "runtime/service/retained_values.h"

namespace ae::runtime {
namespace {

constexpr int kRedactTries = 8;
// The field name of a job's blind.
constexpr std::string_view kBlind = field::blind;

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The value fields of an event that are not erased.
std::vector<std::string> present_fields(const Event& event) {
  std::vector<std::string> present;
  present.reserve(event.salts.size());
  for (const Salt& salt : event.salts) present.push_back(salt.field);
  return present;
}

Status has_ended(const JobId& job, const engine::State& state, const store::LoadedJob& loaded) {
  if (engine::is_terminal(state.status) && !loaded.row.claim) return {};
  return fail(Code::not_settled,
              "job {} has not ended ({}): it still uses its values; "
              "wait for its end or cancel it, then redact",
              job.text, engine::to_text(state.status));
}

Value names_json(const std::vector<ValueName>& names) {
  std::vector<Value> list;
  list.reserve(names.size());
  for (const ValueName& name : names) {
    list.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return Value::array(std::move(list));
}

// Reads a log and builds its redacted copy.
class RedactionBuilder {
 public:
  RedactionBuilder(const RedactRequest& request, const store::LoadedJob& loaded)
      : request_(request), loaded_(loaded) {}

  // nullopt: nothing to write.
  Result<std::optional<store::Redaction>> make(RedactResult& result) {
    AE_TRY(read());
    AE_TRY(has_ended(request_.job, state_, loaded_));
    AE_TRY(select_values(result));
    result.job = request_.job;
    result.retained = retained_values(request_.job, events_, loaded_, request_);
    store::Redaction redaction{.job = request_.job};
    AE_ASSIGN(const std::size_t erased, erase_effects(redaction));
    if (result.erased.empty() && erased == 0) return std::nullopt;
    AE_TRY(rewrite(redaction));
    std::vector<Member> detail{{field::reason, request_.reason},
                               {"values", names_json(result.erased)}};
    if (erased > 0) detail.emplace_back("effects", std::uint64_t{erased});
    redaction.audit = {.by = request_.by,
                       .act = "redact",
                       .job = request_.job,
                       .detail = Value::object(std::move(detail))};
    return redaction;
  }

 private:
  BlobSource blobs(std::vector<Hash>* used = nullptr) const {
    return [this, used](const Hash& hash) -> Result<std::string> {
      if (used != nullptr && std::ranges::find(*used, hash) == used->end()) {
        used->push_back(hash);
      }
      const auto found = std::ranges::find(loaded_.blobs, hash, &Blob::hash);
      if (found != loaded_.blobs.end()) return found->bytes;
      return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
    };
  }

  Status read() {
    AE_ASSIGN(const std::vector<Event> events, open_log(request_.job, loaded_));
    AE_ASSIGN(state_, engine::fold(request_.job, events, engine::uncached_plan_source()));
    events_ = events;
    return {};
  }

  Status select_values(RedactResult& result) {
    if (request_.all) {
      for (const Event& event : events_) {
        std::vector<std::string> fields = present_fields(event);
        std::erase_if(fields, [&](const std::string& field) {
          return !engine::retention_reason(event, field).empty() ||
                 (request_.keep_blind && event.seq == 1 && field == kBlind);
        });
        add_values(event, fields, result);
      }
    }
    for (const ValueName& requested : request_.values) {
      if (requested.seq == 0 || requested.seq > events_.size()) {
        return fail(Code::input_invalid, "job {} has no event {}: its log has 1 to {}",
                    request_.job.text, requested.seq, events_.size());
      }
      const Event& event = events_[requested.seq - 1];
      const auto present = present_fields(event);
      const auto erased = erased_fields(event);
      if (requested.field.empty()) {
        if (present.empty() && erased.empty()) {
          return fail(Code::input_invalid, "event {} holds no value that could be dropped",
                      requested.seq);
        }
        for (const std::string& field : present) AE_TRY(check_erasable(event, field));
        add_values(event, present, result);
        for (const std::string& field : erased)
          result.already_erased.push_back({requested.seq, field});
      } else if (std::ranges::find(present, requested.field) != present.end()) {
        AE_TRY(check_erasable(event, requested.field));
        add_values(event, {requested.field}, result);
      } else if (std::ranges::find(erased, requested.field) != erased.end()) {
        result.already_erased.push_back(requested);
      } else {
        const std::string others = present.empty() ? "" : "; it has " + join_names(present);
        return fail(Code::input_invalid, "event {} has no value \"{}\"{}", requested.seq,
                    requested.field, others);
      }
    }
    AE_TRY(add_summaries(result));
    // Without the blind no hash confirms a guess of an erased value.
    const JobCreated& created = job_created_of(events_.front());
    blinded_ = is_blinded(created);
    if (!to_erase_.empty() && !request_.keep_blind && blind_of(created)) {
      to_erase_.insert({1, std::string(kBlind)});
    }
    result.erased.assign(to_erase_.begin(), to_erase_.end());
    return {};
  }

  // The summaries that models made of these values.
  Status add_summaries(RedactResult& result) {
    if (to_erase_.empty() || !engine::has_summaries(events_)) return {};
    engine::IncrementalFold folding(request_.job, events_, engine::uncached_plan_source(),
                                    /*keeps_folded=*/true);
    while (folding.next()) {
    }
    AE_ASSIGN(const engine::State all, std::move(folding).take());
    std::set<std::uint64_t> seqs;
    for (const ValueName& value : to_erase_) seqs.insert(value.seq);
    for (const auto& [seq, field] : engine::summaries_of(all, events_, seqs)) {
      add_values(events_[seq - 1], {field}, result);
    }
    return {};
  }

  static Status check_erasable(const Event& event, std::string_view field) {
    const std::string_view why = engine::retention_reason(event, field);
    if (why.empty()) return {};
    return fail(Code::input_invalid, "event {}, {} stays: {}", event.seq, field, why);
  }

  void add_values(const Event& event, const std::vector<std::string>& fields, RedactResult&) {
    for (const std::string& field : fields) to_erase_.insert({event.seq, field});
    if (fields.empty()) return;
    // The call's effect record holds its result too.
    std::visit(
        [this](const auto& body) {
          if constexpr (requires { body.invocation_id; }) {
            invocations_.insert(body.invocation_id.text);
          }
          if constexpr (requires { body.result_of; }) {
            if (body.result_of) invocations_.insert(*body.result_of);
          }
        },
        event.body);
    if (const auto* unknown = as<UnknownEvent>(event)) add_unknown(*unknown);
  }

  // An event of a newer version may name a call with the same fields.
  void add_unknown(const UnknownEvent& event) {
    for (const char* name : {field::invocation_id, field::result_of}) {
      const std::string invocation(event.payload.text(name));
      if (!invocation.empty()) invocations_.insert(invocation);
    }
  }

  // The redacted log must still fold: values that the job's course follows from are kept.
  Status rewrite(store::Redaction& redaction) {
    Hash head;
    std::vector<Event> events;
    for (const std::string& bytes : loaded_.commits) {
      const RedactFilter drop = [&](const Event& event, std::string_view field) {
        return to_erase_.contains({event.seq, std::string(field)});
      };
      const RetainFilter retained_value = [&](const Event& event, std::string_view field) {
        return engine::retained_value(event, field, blinded_);
      };
      AE_ASSIGN(std::string redacted_bytes,
                ae::redact(request_.job, bytes, head, blobs(), drop, retained_value));
      std::vector<Hash> used_blobs;
      AE_ASSIGN(OpenedBatch opened, open(request_.job, redacted_bytes, head, blobs(&used_blobs)));
      head = opened.head;
      for (Event& event : opened.events) events.push_back(std::move(event));
      if (redacted_bytes == bytes) continue;
      redaction.commits.push_back({.first_seq = opened.first_seq,
                                   .expected_hash = sha256(bytes),
                                   .bytes = std::move(redacted_bytes),
                                   .blobs = std::move(used_blobs)});
    }
    if (auto folded = engine::fold(request_.job, events, engine::uncached_plan_source()); !folded) {
      return fail(Code::input_invalid,
                  "the job's course follows from one of these values, which therefore stays: {}",
                  folded.error().message);
    }
    return {};
  }

  // Late results are in no event. For each effect it is kept that it happened. Returns the number
  // of changed effects.
  Result<std::size_t> erase_effects(store::Redaction& redaction) const {
    std::size_t erased = 0;
    redaction.effects = loaded_.effects;
    for (store::EffectRow& effect : redaction.effects) {
      if (!request_.all && !invocations_.contains(effect.invocation.text)) continue;
      AE_ASSIGN(std::string erased_record,
                engine::erased_effect(
                    engine::effect_location(request_.job, effect.invocation, effect.try_no),
                    effect.record));
      if (erased_record != effect.record) ++erased;
      effect.record = std::move(erased_record);
    }
    return erased;
  }

  const RedactRequest& request_;
  const store::LoadedJob& loaded_;
  std::vector<Event> events_;
  engine::State state_;
  std::set<ValueName> to_erase_;
  std::set<std::string> invocations_;
  bool blinded_ = false;
};

void try_redact(store::Store& store, std::shared_ptr<RedactRequest> request,
                async::Done<Result<RedactResult>> done, int tries);

// The outcome may be unknown: repeating the same write changes nothing if it was committed.
void write(store::Store& store, std::shared_ptr<RedactRequest> request,
           std::shared_ptr<const store::Redaction> redaction, RedactResult result,
           async::Done<Result<RedactResult>> done, int tries, bool may_be_written = false) {
  store.redact(*redaction, [&store, request, redaction, result = std::move(result),
                            done = std::move(done), tries,
                            may_be_written](Result<void> written) mutable {
    if (written) return done(std::move(result));
    const Code code = written.error().code;
    if (code == Code::unknown_outcome && tries < kRedactTries) {
      return write(store, request, redaction, std::move(result), std::move(done), tries + 1, true);
    }
    // This try was not committed; the previous one may have been.
    if (code == Code::unavailable && may_be_written) written.error().code = Code::unknown_outcome;
    // Another writer was faster: reads the job again.
    if (code == Code::sequence_conflict && tries < kRedactTries) {
      return try_redact(store, request, std::move(done), tries + 1);
    }
    done(std::unexpected(written.error()));
  });
}

void try_redact(store::Store& store, std::shared_ptr<RedactRequest> request,
                async::Done<Result<RedactResult>> done, int tries) {
  store.load(
      request->job, 1,
      [&store, request, done = std::move(done), tries](Result<store::LoadedJob> loaded) mutable {
        if (!loaded) return done(std::unexpected(loaded.error()));
        RedactResult result;
        auto redaction = RedactionBuilder(*request, *loaded).make(result);
        if (!redaction) return done(std::unexpected(redaction.error()));
        if (!*redaction) return done(std::move(result));
        (*redaction)->audit.at = store.now();
        write(store, request, std::make_shared<store::Redaction>(**std::move(redaction)),
              std::move(result), std::move(done), tries);
      });
}

}  // namespace

std::vector<ValueName> redacted_values(const std::vector<Event>& events) {
  std::vector<ValueName> all;
  for (const Event& event : events) {
    for (std::string& field : erased_fields(event)) all.push_back({event.seq, std::move(field)});
  }
  return all;
}

namespace {

// A job of the same fork family: it may hold copies of values and the same blind.
struct Relative {
  JobId job;
  bool values = false;               // has values that `redact --all` would erase
  std::optional<std::string> blind;  // nullopt = it has none, or it was erased
  bool is_unreadable = false;        // its log cannot be read
};

// The redaction of a job and, with `tree`, of its forks. The audit log records which job was forked
// from which.
class FamilyRedaction : public std::enable_shared_from_this<FamilyRedaction> {
 public:
  FamilyRedaction(store::Store& store, RedactRequest request,
                  async::Done<Result<RedactResult>> done)
      : store_(store), request_(std::move(request)), done_(std::move(done)) {}

  void run() {
    read_audit([self = shared_from_this()](const Status& read) {
      if (!read) return self->done_(std::unexpected(read.error()));
      self->family_ = self->family();
      if (!self->request_.tree && self->family_.empty()) return self->start_writing();
      self->load_job();
    });
  }

 private:
  using Then = std::function<void(const Status&)>;

  // Reads the audit entries after `audit_seq_`.
  void read_audit(Then then) {
    store_.read_audit_log(audit_seq_, [self = shared_from_this(), then = std::move(then)](
                                          Result<store::AuditLog> log) mutable {
      if (!log) return then(std::unexpected(log.error()));
      for (const store::AuditRow& row : log->rows) self->add_audit_row(row);
      if (log->rows.empty()) return then({});
      self->audit_seq_ = log->rows.back().seq;
      if (self->audit_seq_ < log->head.seq) return self->read_audit(std::move(then));
      then({});
    });
  }

  void add_audit_row(const store::AuditRow& row) {
    const auto entry = parse_json(row.body);
    if (!entry || entry->text("act") != "fork") return;
    const std::string fork((*entry)[field::detail].text("fork"));
    if (fork.empty()) return;
    forks_of_[std::string(entry->text("job"))].push_back(JobId(fork));
    origins_.insert_or_assign(fork, JobId(std::string(entry->text("job"))));
  }

  // Appends all forks of `job`, each after the job that it was forked from.
  void add_forks(const JobId& job, std::vector<JobId>& to) const {
    const auto forks = forks_of_.find(job.text);
    if (forks == forks_of_.end()) return;
    for (const JobId& fork : forks->second) {
      if (std::ranges::find(to, fork) != to.end()) continue;
      to.push_back(fork);
      add_forks(fork, to);
    }
  }

  // Every job that may hold the blind: all forks of the first origin. Forks of this job come first.
  std::vector<JobId> family() {
    std::vector<JobId> all, ancestors{request_.job};
    add_forks(request_.job, all);
    forks_ = all;
    for (auto origin = origins_.find(request_.job.text); origin != origins_.end();
         origin = origins_.find(ancestors.back().text)) {
      if (std::ranges::find(ancestors, origin->second) != ancestors.end()) break;
      ancestors.push_back(origin->second);
    }
    if (ancestors.size() > 1) all.push_back(ancestors.back());
    add_forks(ancestors.back(), all);
    std::erase(all, request_.job);
    return all;
  }

  bool is_fork(const JobId& job) const { return std::ranges::find(forks_, job) != forks_.end(); }

  // The forks are written first, so it is checked before them that the job can be redacted.
  void load_job() {
    store_.load(request_.job, 1, [self = shared_from_this()](Result<store::LoadedJob> loaded) {
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      const Status status = self->check_redactable(*loaded);
      if (!status) return self->done_(std::unexpected(status.error()));
      self->load_relative(0);
    });
  }

  Status check_redactable(const store::LoadedJob& loaded) {
    AE_ASSIGN(const std::vector<Event> events, open_log(request_.job, loaded));
    AE_ASSIGN(const engine::State state,
              engine::fold(request_.job, events, engine::uncached_plan_source()));
    blinded_ = is_blinded(job_created_of(events.front()));
    blind_ = blind_of(job_created_of(events.front()));
    return has_ended(request_.job, state, loaded);
  }

  // All forks to be redacted must have ended before the first one is redacted.
  void load_relative(std::size_t i) {
    if (i == family_.size()) return start_writing();
    // Of a job that is not redacted, only the blind is needed.
    const std::uint64_t from = is_fork(family_[i]) ? 1 : store::kFirstCommit;
    store_.load(family_[i], from, [self = shared_from_this(), i](Result<store::LoadedJob> loaded) {
      const JobId& job = self->family_[i];
      if (!loaded && loaded.error().code == Code::not_found)
        return self->load_relative(i + 1);  // pruned
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      if (!self->is_fork(job)) {
        self->add_relative(job, *loaded);
        return self->load_relative(i + 1);
      }
      const Status status = self->add_fork(job, *loaded);
      if (!status) return self->done_(std::unexpected(status.error()));
      self->load_relative(i + 1);
    });
  }

  bool would_erase(const Event& event, const std::string& field) const {
    if (field == kBlind && event.seq == 1) return !request_.keep_blind;
    return engine::retention_reason(event, field).empty();
  }

  void add_relative(const JobId& job, const store::LoadedJob& loaded) {
    const auto created = open_job_created(job, loaded);
    Relative relative{
        .job = job,
        .is_unreadable = !created.has_value()};  // an unreadable log does not stop the redaction
    if (created) relative.blind = blind_of(job_created_of(*created));
    relatives_.push_back(std::move(relative));
  }

  Status add_fork(const JobId& job, const store::LoadedJob& loaded) {
    AE_ASSIGN(const std::vector<Event> events, open_log(job, loaded));
    Relative relative{.job = job, .blind = blind_of(job_created_of(events.front()))};
    bool has_erasable = false;
    for (const Event& event : events) {
      for (const std::string& field : present_fields(event)) {
        if (!would_erase(event, field)) continue;
        has_erasable = true;
        relative.values = relative.values || field != kBlind || event.seq != 1;
      }
    }
    relatives_.push_back(relative);
    if (!has_erasable) return {};
    if (request_.tree) {
      AE_ASSIGN(const engine::State state,
                engine::fold(job, events, engine::uncached_plan_source()));
      if (!engine::is_terminal(state.status) || loaded.row.claim) {
        return fail(Code::not_settled,
                    "job {}, a fork of job {}, has not ended: it "
                    "still uses its values; nothing was redacted",
                    job.text, request_.job.text);
      }
    }
    forks_with_values_.push_back(job);
    return {};
  }

  void start_writing() {
    if (!forks_with_values_.empty() && !request_.tree && !request_.keep_forks) {
      std::vector<std::string> names;
      names.reserve(forks_with_values_.size());
      for (const JobId& fork : forks_with_values_) names.push_back(fork.text);
      return done_(fail(Code::input_invalid,
                        "forks of job {} hold copies of its values or its blind: {}; redact "
                        "them too (--tree with --all), or leave them (--keep-forks)",
                        request_.job.text, join_names(names)));
    }
    next();
  }

  // Newest fork first, the job itself last: after a failure the rest can still be found.
  void next() {
    RedactRequest one = request_;
    const bool fork = request_.tree && !forks_with_values_.empty();
    if (fork) {
      one.job = forks_with_values_.back();
      forks_with_values_.pop_back();
    }
    written_.insert(one.job.text);
    redact_one(std::move(one), [self = shared_from_this(), fork](Result<RedactResult> redacted) {
      if (!redacted) return self->done_(std::unexpected(redacted.error()));
      if (fork) {
        self->redacted_.push_back(std::move(*redacted));
        return self->next();
      }
      redacted->forks = std::move(self->redacted_);
      self->list_relatives(*redacted);
      self->check_new_forks(std::make_shared<RedactResult>(std::move(*redacted)));
    });
  }

  void list_relatives(RedactResult& result) const {
    for (const Relative& relative : relatives_) {
      if (written_.contains(relative.job.text)) continue;
      const std::string where = fmt::format("job {}", relative.job.text);
      if (relative.values) {
        result.retained.push_back(
            {"copies of values", where, "it is a fork, and was left (--keep-forks)"});
      }
      if (!blinded_ || !may_have_blind(relative)) continue;
      const bool known = blind_ && !relative.is_unreadable;
      result.retained.push_back({field::blind, where,
                                 fmt::format("{} the blind of this job: with it a guess of an "
                                             "erased value can be confirmed; redact that job too",
                                             known ? "it has" : "it may have")});
    }
  }

  // Nothing records the value of an erased blind, so every blind that may be the same counts.
  bool may_have_blind(const Relative& relative) const {
    if (relative.is_unreadable) return true;
    return relative.blind && (!blind_ || *blind_ == *relative.blind);
  }

  // A fork created after the audit log was read has the values that existed then.
  void check_new_forks(const std::shared_ptr<RedactResult>& result) {
    if (result->erased.empty() && result->forks.empty()) return erase_dropped_values(result);
    read_audit([self = shared_from_this(), result](const Status& read) {
      if (!read) {  // the values are erased: not an error of the redaction
        result->retained.push_back(
            {"copies of values", "forks made during the redaction",
             fmt::format("whether there are such is not known ({}): redact the job again",
                         read.error().message)});
        return self->erase_dropped_values(result);
      }
      const std::vector<JobId> before = self->family_;
      for (const JobId& job : self->family()) {
        if (std::ranges::find(before, job) != before.end()) continue;
        result->retained.push_back(
            {"copies of values", fmt::format("job {}", job.text),
             "it was forked during the redaction, and may have values and the "
             "blind: redact it too when it has ended"});
      }
      self->erase_dropped_values(result);
    });
  }

  // Also runs when nothing was erased by this request: an earlier redaction may have failed before
  // this step.
  void erase_dropped_values(const std::shared_ptr<RedactResult>& result) {
    store_.erase_dropped_values(
        [self = shared_from_this(), result](Result<std::vector<store::ResidualCopy>> copies) {
          if (!copies) {  // the values are erased: not an error of the redaction
            result->retained.push_back(
                {"copies of values", "the files of the store",
                 fmt::format("old copies were not removed ({}): redact the job again",
                             copies.error().message)});
            return self->done_(std::move(*result));
          }
          for (store::ResidualCopy& copy : *copies) {
            result->retained.push_back(
                {std::move(copy.what), std::move(copy.where), std::move(copy.why)});
          }
          self->done_(std::move(*result));
        });
  }

  void redact_one(RedactRequest request, async::Done<Result<RedactResult>> done) {
    try_redact(store_, std::make_shared<RedactRequest>(std::move(request)), std::move(done), 1);
  }

  store::Store& store_;
  const RedactRequest request_;
  async::Done<Result<RedactResult>> done_;
  std::uint64_t audit_seq_ = 0;  // last audit entry that was read
  // forks, by the job that they were forked from
  std::map<std::string, std::vector<JobId>> forks_of_;
  std::map<std::string, JobId> origins_;  // origin, by fork
  std::vector<JobId> forks_, family_, forks_with_values_;
  std::vector<Relative> relatives_;
  std::set<std::string> written_;     // jobs that this redaction writes
  bool blinded_ = false;              // the job has, or had, a blind
  std::optional<std::string> blind_;  // nullopt: none, or erased
  std::vector<RedactResult> redacted_;
};

}  // namespace

void redact(store::Store& store, RedactRequest request, async::Done<Result<RedactResult>> done) {
  std::make_shared<FamilyRedaction>(store, std::move(request), std::move(done))->run();
}

}  // namespace ae::runtime
