#include "runtime/redact.h"

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

#include "engine/heart/absorb.h"
#include "engine/heart/beside.h"
#include "engine/state/left.h"
#include "json/json.h"
#include "log/redacted.h"
#include "log/seal.h"
#include "runtime/kept.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr int kRedactTries = 8;
// A job's blind, as a value that can be named.
constexpr std::string_view kBlind = "blind";

std::string named(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// What of one event is still there.
std::vector<std::string> there_of(const Event& event) {
  std::vector<std::string> there;
  if (!event.salts.is_object()) return there;
  for (const auto& [name, salt] : event.salts.members()) there.push_back(name);
  return there;
}

Status has_ended(const JobId& job, const engine::State& state, const store::Loaded& loaded) {
  if (engine::is_terminal(state.status) && !loaded.row.claim) return {};
  return fail(Code::not_settled,
              "job " + job.text + " has not ended (" + std::string(engine::to_text(state.status)) +
                  "): it still uses its values; wait for its end or cancel it, then redact");
}

Value names_json(const std::vector<ValueName>& names) {
  std::vector<Value> list;
  list.reserve(names.size());
  for (const ValueName& name : names) {
    list.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return Value::array(std::move(list));
}

// A log, read; and then once more without what is to go.
class Redacting {
 public:
  Redacting(const RedactRequest& request, const store::Loaded& loaded)
      : request_(request), loaded_(loaded) {}

  // nullopt: nothing is to be written.
  Result<std::optional<store::Redaction>> make(Redacted& said) {
    AE_TRY(read());
    AE_TRY(has_ended(request_.job, state_, loaded_));
    AE_TRY(choose(said));
    said.job = request_.job;
    said.kept = kept_of(request_.job, events_, loaded_, request_);
    store::Redaction redaction{.job = request_.job};
    AE_ASSIGN(const std::size_t erased, erase_effects(redaction));
    if (said.dropped.empty() && erased == 0) return std::nullopt;
    AE_TRY(rewrite(redaction));
    std::vector<Member> detail{{"reason", request_.reason}, {"values", names_json(said.dropped)}};
    if (erased > 0) detail.emplace_back("effects", std::uint64_t{erased});
    redaction.audit = {.by = request_.by,
                       .act = "redact",
                       .job = request_.job,
                       .detail = Value::object(std::move(detail))};
    return redaction;
  }

 private:
  BlobSource blobs(std::vector<Hash>* noted = nullptr) const {
    return [this, noted](const Hash& hash) -> Result<std::string> {
      if (noted != nullptr && std::ranges::find(*noted, hash) == noted->end()) {
        noted->push_back(hash);
      }
      const auto found = std::ranges::find(loaded_.blobs, hash, &Blob::hash);
      if (found != loaded_.blobs.end()) return found->bytes;
      return fail(Code::log_corrupt, "blob " + to_hex(hash) + " is missing");
    };
  }

  Status read() {
    AE_ASSIGN(const std::vector<Event> events, open_log(request_.job, loaded_));
    AE_ASSIGN(state_, engine::fold(request_.job, events, engine::compile_each_time()));
    events_ = events;
    return {};
  }

  Status choose(Redacted& said) {
    if (request_.all) {
      for (const Event& event : events_) {
        std::vector<std::string> fields = there_of(event);
        std::erase_if(fields, [&](const std::string& field) {
          return !engine::why_kept(event, field).empty() ||
                 (request_.keep_blind && event.seq == 1 && field == kBlind);
        });
        take(event, fields, said);
      }
    }
    for (const ValueName& wish : request_.values) {
      if (wish.seq == 0 || wish.seq > events_.size()) {
        return fail(Code::input_invalid, "job " + request_.job.text + " has no event " +
                                             std::to_string(wish.seq) + ": its log has 1 to " +
                                             std::to_string(events_.size()));
      }
      const Event& event = events_[wish.seq - 1];
      const auto there = there_of(event);
      const auto gone = erased_values(event);
      if (wish.field.empty()) {
        if (there.empty() && gone.empty()) {
          return fail(Code::input_invalid, "event " + std::to_string(wish.seq) +
                                               " holds no value that could be dropped");
        }
        for (const std::string& field : there) AE_TRY(may_go(event, field));
        take(event, there, said);
        for (const std::string& field : gone) said.gone.push_back({wish.seq, field});
      } else if (std::ranges::find(there, wish.field) != there.end()) {
        AE_TRY(may_go(event, wish.field));
        take(event, {wish.field}, said);
      } else if (std::ranges::find(gone, wish.field) != gone.end()) {
        said.gone.push_back(wish);
      } else {
        return fail(Code::input_invalid, "event " + std::to_string(wish.seq) + " has no value \"" +
                                             wish.field + "\"" +
                                             (there.empty() ? "" : "; it has " + named(there)));
      }
    }
    // Without it no hash confirms a guess of what is erased.
    const JobCreated& created = birth_of(events_.front());
    blinded_ = is_blinded(created);
    if (!drop_.empty() && !request_.keep_blind && blind_of(created)) {
      drop_.insert({1, std::string(kBlind)});
    }
    said.dropped.assign(drop_.begin(), drop_.end());
    return {};
  }

  static Status may_go(const Event& event, std::string_view field) {
    const std::string_view why = engine::why_kept(event, field);
    if (why.empty()) return {};
    return fail(Code::input_invalid, "event " + std::to_string(event.seq) + ", " +
                                         std::string(field) + " stays: " + std::string(why));
  }

  void take(const Event& event, const std::vector<std::string>& fields, Redacted&) {
    for (const std::string& field : fields) drop_.insert({event.seq, field});
    if (fields.empty()) return;
    // The record of the call's effect holds its result too.
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
    if (const auto* unknown = as<UnknownEvent>(event)) take_unknown(*unknown);
  }

  // An event of a newer program may name a call as those of this program do.
  void take_unknown(const UnknownEvent& event) {
    for (const char* name : {"invocation_id", "result_of"}) {
      const std::string invocation(event.payload.text(name));
      if (!invocation.empty()) invocations_.insert(invocation);
    }
  }

  // The log without them must still be one: what the job's course follows from stays.
  Status rewrite(store::Redaction& redaction) {
    Hash head;
    std::vector<Event> events;
    for (const std::string& bytes : loaded_.commits) {
      const DropValue drop = [&](const Event& event, std::string_view field) {
        return drop_.contains({event.seq, std::string(field)});
      };
      const LeftOver left_of = [&](const Event& event, std::string_view field) {
        return engine::left_of(event, field, blinded_);
      };
      AE_ASSIGN(std::string left, ae::redact(request_.job, bytes, head, blobs(), drop, left_of));
      std::vector<Hash> named_blobs;
      AE_ASSIGN(Opened opened, open(request_.job, left, head, blobs(&named_blobs)));
      head = opened.head;
      for (Event& event : opened.events) events.push_back(std::move(event));
      if (left == bytes) continue;
      redaction.commits.push_back({.first_seq = opened.first_seq,
                                   .replaces = sha256(bytes),
                                   .bytes = std::move(left),
                                   .blobs = std::move(named_blobs)});
    }
    if (auto folded = engine::fold(request_.job, events, engine::compile_each_time()); !folded) {
      return fail(Code::input_invalid,
                  "the job's course follows from one of these values, which therefore stays: " +
                      folded.error().message);
    }
    return {};
  }

  // What came late is in no event. Of each effect it stays known that it happened. Gives how many are changed.
  Result<std::size_t> erase_effects(store::Redaction& redaction) const {
    std::size_t erased = 0;
    redaction.effects = loaded_.effects;
    for (store::EffectRow& effect : redaction.effects) {
      if (!request_.all && !invocations_.contains(effect.invocation.text)) continue;
      AE_ASSIGN(
          std::string left,
          engine::erased_effect(
              engine::effect_place(request_.job, effect.invocation, effect.try_no), effect.record));
      if (left != effect.record) ++erased;
      effect.record = std::move(left);
    }
    return erased;
  }

  const RedactRequest& request_;
  const store::Loaded& loaded_;
  std::vector<Event> events_;
  engine::State state_;
  std::set<ValueName> drop_;
  std::set<std::string> invocations_;
  bool blinded_ = false;
};

void try_redact(store::Store& store, std::shared_ptr<RedactRequest> request,
                async::Done<Result<Redacted>> done, int tries);

// Nobody knows whether it stands: the same again writes nothing when it does.
void write(store::Store& store, std::shared_ptr<RedactRequest> request,
           std::shared_ptr<const store::Redaction> redaction, Redacted said,
           async::Done<Result<Redacted>> done, int tries, bool may_stand = false) {
  store.redact(*redaction, [&store, request, redaction, said = std::move(said),
                            done = std::move(done), tries,
                            may_stand](Result<void> written) mutable {
    if (written) return done(std::move(said));
    const Code code = written.error().code;
    if (code == Code::unknown_outcome && tries < kRedactTries) {
      return write(store, request, redaction, std::move(said), std::move(done), tries + 1, true);
    }
    // Of this try nothing stands; of the one before, nobody knows.
    if (code == Code::unavailable && may_stand) written.error().code = Code::unknown_outcome;
    // Somebody else was quicker: what stands there is read again.
    if (code == Code::sequence_conflict && tries < kRedactTries) {
      return try_redact(store, request, std::move(done), tries + 1);
    }
    done(std::unexpected(written.error()));
  });
}

void try_redact(store::Store& store, std::shared_ptr<RedactRequest> request,
                async::Done<Result<Redacted>> done, int tries) {
  store.load(
      request->job, 1,
      [&store, request, done = std::move(done), tries](Result<store::Loaded> loaded) mutable {
        if (!loaded) return done(std::unexpected(loaded.error()));
        Redacted said;
        auto redaction = Redacting(*request, *loaded).make(said);
        if (!redaction) return done(std::unexpected(redaction.error()));
        if (!*redaction) return done(std::move(said));
        (*redaction)->audit.at = store.now();
        write(store, request, std::make_shared<store::Redaction>(**std::move(redaction)),
              std::move(said), std::move(done), tries);
      });
}

}  // namespace

std::vector<ValueName> redacted_values(const std::vector<Event>& events) {
  std::vector<ValueName> all;
  for (const Event& event : events) {
    for (std::string& field : erased_values(event)) all.push_back({event.seq, std::move(field)});
  }
  return all;
}

namespace {

// What another job of the family holds: it has copies of values, and the same blind.
struct Relative {
  JobId job;
  bool values = false;               // that `redact --all` would drop
  std::optional<std::string> blind;  // nullopt = it has none, or it is erased
  bool unread = false;               // its log cannot be read
};

// A redaction of a job and, with `tree`, of its forks. The audit log says which job was forked from which.
class Tree : public std::enable_shared_from_this<Tree> {
 public:
  Tree(store::Store& store, RedactRequest request, async::Done<Result<Redacted>> done)
      : store_(store), request_(std::move(request)), done_(std::move(done)) {}

  void run() {
    read_audit([self = shared_from_this()](const Status& read) {
      if (!read) return self->done_(std::unexpected(read.error()));
      self->family_ = self->family();
      if (!self->request_.tree && self->family_.empty()) return self->decided();
      self->look_at_own();
    });
  }

 private:
  using Then = std::function<void(const Status&)>;

  // The entries behind those that were read.
  void read_audit(Then then) {
    store_.audit_log(audited_, [self = shared_from_this(),
                                then = std::move(then)](Result<store::AuditLog> log) mutable {
      if (!log) return then(std::unexpected(log.error()));
      for (const store::AuditRow& row : log->rows) self->note(row);
      if (log->rows.empty()) return then({});
      self->audited_ = log->rows.back().seq;
      if (self->audited_ < log->head.seq) return self->read_audit(std::move(then));
      then({});
    });
  }

  void note(const store::AuditRow& row) {
    const auto entry = parse_json(row.body);
    if (!entry || entry->text("act") != "fork") return;
    const std::string fork((*entry)["detail"].text("fork"));
    if (fork.empty()) return;
    made_[std::string(entry->text("job"))].push_back(JobId(fork));
    origins_.insert_or_assign(fork, JobId(std::string(entry->text("job"))));
  }

  // Each fork stands after the job that it was forked from.
  void add_forks(const JobId& job, std::vector<JobId>& to) const {
    const auto made = made_.find(job.text);
    if (made == made_.end()) return;
    for (const JobId& fork : made->second) {
      if (std::ranges::find(to, fork) != to.end()) continue;
      to.push_back(fork);
      add_forks(fork, to);
    }
  }

  // Every job that may hold the blind: all forks of the first origin. Those of this job come first.
  std::vector<JobId> family() {
    std::vector<JobId> all, line{request_.job};
    add_forks(request_.job, all);
    forks_ = all;
    for (auto up = origins_.find(request_.job.text); up != origins_.end();
         up = origins_.find(line.back().text)) {
      if (std::ranges::find(line, up->second) != line.end()) break;
      line.push_back(up->second);
    }
    if (line.size() > 1) all.push_back(line.back());
    add_forks(line.back(), all);
    std::erase(all, request_.job);
    return all;
  }

  bool is_fork(const JobId& job) const { return std::ranges::find(forks_, job) != forks_.end(); }

  // The forks are written first, so the job must be known to be redactable before them.
  void look_at_own() {
    store_.load(request_.job, 1, [self = shared_from_this()](Result<store::Loaded> loaded) {
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      const Status may = self->may_redact(*loaded);
      if (!may) return self->done_(std::unexpected(may.error()));
      self->look(0);
    });
  }

  Status may_redact(const store::Loaded& loaded) {
    AE_ASSIGN(const std::vector<Event> events, open_log(request_.job, loaded));
    AE_ASSIGN(const engine::State state,
              engine::fold(request_.job, events, engine::compile_each_time()));
    blinded_ = is_blinded(birth_of(events.front()));
    blind_ = blind_of(birth_of(events.front()));
    return has_ended(request_.job, state, loaded);
  }

  // All forks that are to be redacted must have ended before the first one is.
  void look(std::size_t i) {
    if (i == family_.size()) return decided();
    // Of a job that is not redacted, only the blind matters.
    const std::uint64_t from = is_fork(family_[i]) ? 1 : store::kFirstCommit;
    store_.load(family_[i], from, [self = shared_from_this(), i](Result<store::Loaded> loaded) {
      const JobId& job = self->family_[i];
      if (!loaded && loaded.error().code == Code::not_found) return self->look(i + 1);  // pruned
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      if (!self->is_fork(job)) {
        self->take_relative(job, *loaded);
        return self->look(i + 1);
      }
      const Status looked = self->take_fork(job, *loaded);
      if (!looked) return self->done_(std::unexpected(looked.error()));
      self->look(i + 1);
    });
  }

  bool would_drop(const Event& event, const std::string& field) const {
    if (field == kBlind && event.seq == 1) return !request_.keep_blind;
    return engine::why_kept(event, field).empty();
  }

  void take_relative(const JobId& job, const store::Loaded& loaded) {
    const auto created = open_created(job, loaded);
    Relative relative{.job = job, .unread = !created.has_value()};  // its log hinders nothing
    if (created) relative.blind = blind_of(birth_of(*created));
    relatives_.push_back(std::move(relative));
  }

  Status take_fork(const JobId& job, const store::Loaded& loaded) {
    AE_ASSIGN(const std::vector<Event> events, open_log(job, loaded));
    Relative relative{.job = job, .blind = blind_of(birth_of(events.front()))};
    bool drops = false;
    for (const Event& event : events) {
      for (const std::string& field : there_of(event)) {
        if (!would_drop(event, field)) continue;
        drops = true;
        relative.values = relative.values || field != kBlind || event.seq != 1;
      }
    }
    relatives_.push_back(relative);
    if (!drops) return {};
    if (request_.tree) {
      AE_ASSIGN(const engine::State state, engine::fold(job, events, engine::compile_each_time()));
      if (!engine::is_terminal(state.status) || loaded.row.claim) {
        return fail(Code::not_settled,
                    "job " + job.text + ", a fork of job " + request_.job.text +
                        ", has not ended: it still uses its values; nothing was redacted");
      }
    }
    holding_.push_back(job);
    return {};
  }

  void decided() {
    if (!holding_.empty() && !request_.tree && !request_.keep_forks) {
      std::vector<std::string> names;
      names.reserve(holding_.size());
      for (const JobId& fork : holding_) names.push_back(fork.text);
      return done_(fail(Code::input_invalid,
                        "forks of job " + request_.job.text +
                            " hold copies of its values or its blind: " + named(names) +
                            "; redact them too (--tree with --all), or leave them (--keep-forks)"));
    }
    next();
  }

  // The newest fork first, the job itself last: what fails on the way is found again.
  void next() {
    RedactRequest one = request_;
    const bool fork = request_.tree && !holding_.empty();
    if (fork) {
      one.job = holding_.back();
      holding_.pop_back();
    }
    written_.insert(one.job.text);
    redact_one(std::move(one), [self = shared_from_this(), fork](Result<Redacted> redacted) {
      if (!redacted) return self->done_(std::unexpected(redacted.error()));
      if (fork) {
        self->redacted_.push_back(std::move(*redacted));
        return self->next();
      }
      redacted->forks = std::move(self->redacted_);
      self->list_relatives(*redacted);
      self->look_for_new_forks(std::make_shared<Redacted>(std::move(*redacted)));
    });
  }

  void list_relatives(Redacted& own) const {
    for (const Relative& relative : relatives_) {
      if (written_.contains(relative.job.text)) continue;
      const std::string where = "job " + relative.job.text;
      if (relative.values) {
        own.kept.push_back(
            {"copies of values", where, "it is a fork, and was left (--keep-forks)"});
      }
      if (!blinded_ || !may_have_blind(relative)) continue;
      const bool known = blind_ && !relative.unread;
      own.kept.push_back({"blind", where,
                          std::string(known ? "it has" : "it may have") +
                              " the blind of this job: with it a guess of an erased value can be "
                              "confirmed; redact that job too"});
    }
  }

  // What an erased blind was, no log says: one that may be the same counts.
  bool may_have_blind(const Relative& relative) const {
    if (relative.unread) return true;
    return relative.blind && (!blind_ || *blind_ == *relative.blind);
  }

  // A fork that was made after the audit log was read has the values that were there then.
  void look_for_new_forks(const std::shared_ptr<Redacted>& own) {
    if (own->dropped.empty() && own->forks.empty()) return wipe(own);
    read_audit([self = shared_from_this(), own](const Status& read) {
      if (!read) {  // the values are erased: this is no error of the redaction
        own->kept.push_back({"copies of values", "forks made during the redaction",
                             "whether there are such is not known (" + read.error().message +
                                 "): redact the job again"});
        return self->wipe(own);
      }
      const std::vector<JobId> before = self->family_;
      for (const JobId& job : self->family()) {
        if (std::ranges::find(before, job) != before.end()) continue;
        own->kept.push_back({"copies of values", "job " + job.text,
                             "it was forked during the redaction, and may have values and the "
                             "blind: redact it too when it has ended"});
      }
      self->wipe(own);
    });
  }

  // Also when nothing was dropped now: an earlier redaction may have ended before this.
  void wipe(const std::shared_ptr<Redacted>& own) {
    store_.wipe([self = shared_from_this(), own](Result<std::vector<store::OldCopy>> left) {
      if (!left) {  // the values are erased: this is no error of the redaction
        own->kept.push_back(
            {"copies of values", "the files of the store",
             "old copies were not removed (" + left.error().message + "): redact the job again"});
        return self->done_(std::move(*own));
      }
      for (store::OldCopy& copy : *left) {
        own->kept.push_back({std::move(copy.what), std::move(copy.where), std::move(copy.why)});
      }
      self->done_(std::move(*own));
    });
  }

  void redact_one(RedactRequest request, async::Done<Result<Redacted>> done) {
    try_redact(store_, std::make_shared<RedactRequest>(std::move(request)), std::move(done), 1);
  }

  store::Store& store_;
  const RedactRequest request_;
  async::Done<Result<Redacted>> done_;
  std::uint64_t audited_ = 0;                       // entries of the audit log that were read
  std::map<std::string, std::vector<JobId>> made_;  // forks, by the job that they were forked from
  std::map<std::string, JobId> origins_;            // and that job, by the fork
  std::vector<JobId> forks_, family_, holding_;
  std::vector<Relative> relatives_;
  std::set<std::string> written_;     // jobs that this redaction writes
  bool blinded_ = false;              // the job has, or had, a blind
  std::optional<std::string> blind_;  // nullopt: it is erased
  std::vector<Redacted> redacted_;
};

}  // namespace

void redact(store::Store& store, RedactRequest request, async::Done<Result<Redacted>> done) {
  std::make_shared<Tree>(store, std::move(request), std::move(done))->run();
}

}  // namespace ae::runtime
