// Sealed batch fuzzer: any bytes are accepted or rejected; accepted bytes are the unique encoding
// and hash to their head; the sample commit with any changed byte is rejected.
//
// The first byte selects the mode: 0 = the rest is a batch; 1 = the events of a batch, which gets a
// valid head, so that code after the chain check is reached; else edits of the sample commit.
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/bytes.h"
#include "base/hash.h"
#include "json/canonical_buffer.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "log/sealed_form.h"

namespace {

const ae::JobId kJob("job-1");
const ae::AttemptId kAttempt("01890a5d-ac96-774b-bcce-b302099a8057");

ae::Result<std::string> any_blob(const ae::Hash&) { return "null"; }

std::string_view raw(const ae::Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}

// The commitment of a value in the chain: computed from the value and its salt, or
// stored if the value is erased.
ae::Value committed(const ae::Value& shown, const ae::Salt* salt) {
  ae::Value digest = shown["$redacted"];
  if (salt != nullptr) {
    const std::string bytes(salt->bytes.begin(), salt->bytes.end());
    digest = ae::to_hex(ae::commitment(bytes + ae::canonical(shown)));
  }
  return ae::Value::object({{"$sha256", std::move(digest)}});
}

// payload', computed from the envelope only, not from the bytes.
ae::Value chained_payload(const ae::Event& event) {
  const ae::EventKind* const kind = ae::event_kind(event.type);
  std::vector<ae::Member> members;
  const ae::Value payload = ae::payload_json(event.body);
  for (const auto& [name, shown] : payload.members()) {
    const ae::Salt* const salt = ae::salt_of(event, name);
    const ae::Salt* const message_salt = ae::salt_of(event, name + ".message");
    bool value = salt != nullptr, error = message_salt != nullptr;
    if (kind != nullptr) {
      for (const ae::Field& field : kind->fields) {
        if (field.name != name) continue;
        value = value || field.kind == ae::FieldKind::value;
        error = field.kind == ae::FieldKind::error;
      }
    }
    if (error) {
      members.emplace_back(
          name, ae::Value::object({{ae::field::code, shown[ae::field::code]},
                                   {"message", committed(shown["message"], message_salt)}}));
    } else {
      members.emplace_back(name, value ? committed(shown, salt) : shown);
    }
  }
  return ae::Value::object(std::move(members));
}

// A narrative member may have the form of a redacted one; the envelope alone
// cannot distinguish them.
bool is_ambiguous(const ae::Event& event) {
  if (static_cast<std::uint8_t>(event.type) < ae::kNarrativeFrom) return false;
  return ae::canonical(ae::payload_json(event.body)).find("$redacted") != std::string::npos ||
         ae::event_kind(event.type) == nullptr || event.schema > 1;
}

void check_chain(const ae::OpenedBatch& opened) {
  ae::Hash prev;
  for (const ae::Event& event : opened.events) {
    AE_CHECK(event.prev_hash == prev, std::to_string(event.seq));
    prev = event.hash;
    if (is_ambiguous(event)) continue;
    ae::EventHasher hasher(kJob, event.created_at, event.attempt_id);
    hasher.begin(event, ae::event_name(event));
    ae::write_canonical(chained_payload(event), hasher.text());
    AE_CHECK(hasher.finish() == event.hash, ae::canonical(ae::envelope(kJob, event)));
  }
  AE_CHECK(prev == opened.head);
}

ae::Result<ae::OpenedBatch> read(std::string_view bytes, const ae::BlobSource& blobs) {
  auto opened = ae::open(kJob, bytes, ae::Hash{}, blobs);
  const auto keep = [](const ae::Event&, std::string_view) { return false; };
  const auto kept = ae::redact(kJob, bytes, ae::Hash{}, blobs, keep);
  AE_CHECK(opened.has_value() == kept.has_value());
  if (!opened) return opened;
  AE_CHECK(*kept == bytes);
  check_chain(*opened);
  const auto drop = [](const ae::Event&, std::string_view) { return true; };
  const auto bare = ae::redact(kJob, bytes, ae::Hash{}, blobs, drop);
  AE_CHECK(bare.has_value());
  const auto again = ae::open(kJob, *bare, ae::Hash{}, blobs);
  AE_CHECK(again.has_value() && again->head == opened->head);
  return opened;
}

// A batch of the events in the bytes, each `type, schema, length, body`, plus one event with a
// value to redact, and the matching head.
std::string with_head(std::string_view begin) {
  std::string events;
  std::uint64_t count = 1;
  for (; begin.size() >= 3; ++count) {
    const std::string_view body = begin.substr(3, static_cast<unsigned char>(begin[2]));
    events += begin.substr(0, 2);
    ae::put_text(body, events);
    begin.remove_prefix(3 + body.size());
  }
  std::string last;
  ae::put_text("progress", last);
  ae::put_text(ae::field::detail, last);
  ae::put_byte(ae::kNamedValue, last);
  last += std::string(ae::kSaltSize, 's');
  ae::put_text("1", last);
  ae::put_byte(131, events);
  ae::put_byte(2, events);  // an unknown schema, so that the member may be a value
  ae::put_text(last, events);

  std::string bytes;
  ae::put_byte(ae::kSealedVersion, bytes);
  bytes += std::string(16, 'i');
  ae::put_big_endian64(1'700'000'000'123'456, bytes);
  ae::put_byte(ae::kTextAttempt, bytes);
  ae::put_text("attempt", bytes);
  ae::put_varint(count, bytes);
  ae::put_varint(1, bytes);
  bytes += events;
  ae::Hash head;
  const auto read_head = [&](const ae::Event& event, std::string_view) {
    head = event.hash;
    return false;
  };
  const std::string headless = bytes + std::string(ae::kHashSize, '\0');
  static_cast<void>(ae::redact(kJob, headless, ae::Hash{}, any_blob, read_head));
  bytes += raw(head);
  return bytes;
}

// A commit with inline values, blobs, an error, words, keys and a narrative event.
struct SampleCommit {
  ae::SealedBatch sealed;
  std::map<ae::Hash, std::string> blobs;

  SampleCommit() {
    const auto json = [](std::string_view text) { return ae::parse_json(text).value(); };
    const ae::StepId step("baeb6f1c8b06de2e");
    const ae::SealInput input{.job = kJob,
                              .first_seq = 1,
                              .prev_hash = {},
                              .first_id = ae::uuid_v7(1'700'000'000'000, 7, 1000),
                              .created_at = {1'700'000'000'123'456},
                              .attempt_id = kAttempt,
                              .salt_seed_a = 11,
                              .salt_seed_b = 7};
    sealed =
        ae::seal(input,
                 {ae::JobRunning{.attempt_id = "a", .epoch = 1, .worker_id = "host:1"},
                  ae::NodeFinished{.error = ae::RecordedError{"timeout", ae::Value("too long")},
                                   .node_id = "n",
                                   .result_type = "permanent_failure",
                                   .step_id = step,
                                   .try_no = 1},
                  ae::WaitCompleted{.by = "ada",
                                    .correlation_key = "k",
                                    .node_id = "n",
                                    .outcome = "signalled",
                                    .payload = json(R"({"text":"a long answer"})"),
                                    .step_id = step,
                                    .wait_type = "signal"},
                  ae::Progress{.detail = ae::JsonOf<ae::ProgressReport>(json(R"({"done":3})")),
                               .node_id = "n"},
                  ae::JobCompleted{.result = json(R"({"total":12.5})")}},
                 {.value_inline_max = 15, .json_inline_max = 4})
            .value();
    for (const ae::Blob& blob : sealed.blobs) blobs[blob.hash] = blob.bytes;
  }

  ae::Result<std::string> blob(const ae::Hash& hash) const {
    const auto found = blobs.find(hash);
    if (found == blobs.end()) return ae::fail(ae::Code::log_corrupt, "no such blob");
    return found->second;
  }
};

// Each edit is three bytes: position and new byte; a position past the end truncates.
void edit_sample(std::string_view edits) {
  static const SampleCommit sample;
  std::string bytes = sample.sealed.bytes;
  for (; edits.size() >= 3; edits.remove_prefix(3)) {
    const std::size_t at =
        static_cast<unsigned char>(edits[0]) * 256u + static_cast<unsigned char>(edits[1]);
    if (at < bytes.size()) {
      bytes[at] = edits[2];
    } else {
      bytes.resize(at % (bytes.size() + 1));
    }
  }
  const auto opened = read(bytes, [](const ae::Hash& hash) { return sample.blob(hash); });
  AE_CHECK(opened.has_value() == (bytes == sample.sealed.bytes), ae::to_hex(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (*data == 0) {
    static_cast<void>(read(rest, any_blob));
  } else if (*data == 1) {
    static_cast<void>(read(with_head(rest), any_blob));
  } else {
    edit_sample(rest);
  }
  return 0;
}
