// Fuzzes the reader of checkpoints after their checksum: a state is either rejected or written back
// unchanged.
//
// The first byte selects the meaning of the rest: 0 = the fields of a state; else
// edits of a valid checkpoint.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "engine/fixtures/job_fixture_fuzz.h"
#include "engine/state/checkpoint.h"

namespace {

namespace engine = ae::engine;

constexpr std::size_t kHashSize = 32;

std::string with_sum(std::string content) {
  const ae::Hash sum = ae::sha256(content);
  content.append(reinterpret_cast<const char*>(sum.bytes.data()), kHashSize);
  return content;
}

struct ValidCheckpoint {
  engine::State state = std::move(engine::FuzzJob().state);
  ae::Hash head = ae::sha256("head");
  std::string content;     // without its checksum
  std::size_t fields = 0;  // offset after the fold's version and the head

  ValidCheckpoint() {
    content = engine::checkpoint(state, head);
    content.resize(content.size() - kHashSize);
    std::string begin;
    ae::put_text(engine::fold_version(), begin);
    fields = begin.size() + kHashSize;
  }
};

// Each edit is three bytes: an offset, and the new byte; an offset past the end truncates.
std::string edited(std::string bytes, std::string_view edits) {
  for (; edits.size() >= 3; edits.remove_prefix(3)) {
    const std::size_t at =
        static_cast<unsigned char>(edits[0]) * 256u + static_cast<unsigned char>(edits[1]);
    if (at < bytes.size()) {
      bytes[at] = edits[2];
    } else {
      bytes.resize(at % (bytes.size() + 1));
    }
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ValidCheckpoint valid;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string content = *data == 0 ? valid.content.substr(0, valid.fields) + std::string(rest)
                                         : edited(valid.content, rest);
  const auto restored = engine::restore(valid.state.job, valid.state.seq, with_sum(content),
                                        engine::uncached_plan_source());
  if (!restored) {
    AE_CHECK(content != valid.content);
    return 0;
  }
  const std::string written = engine::checkpoint(restored->state, restored->head);
  const auto again =
      engine::restore(valid.state.job, valid.state.seq, written, engine::uncached_plan_source());
  AE_CHECK(again.has_value(), again ? "" : again.error().message);
  AE_CHECK(engine::checkpoint(again->state, again->head) == written);
  return 0;
}
