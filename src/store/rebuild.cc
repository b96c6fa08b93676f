#include "store/rebuild.h"

#include <fmt/core.h>

namespace ae::store {
namespace {

constexpr std::size_t kShownMax = 80;

}  // namespace

Damage foreign_trigger(const std::string& what, const std::string& table, const std::string& drop) {
  return {"foreign_trigger",
          fmt::format("the store holds {} on its table {}, which Aetheris did not make and which "
                      "can change what is written: stop what uses the store, then `{}` in it",
                      what, table, drop)};
}

Damage broken_meta(const std::string& key, const std::string& value) {
  const std::string shown =
      value.empty() ? "nothing" : fmt::format("\"{}\"", value.substr(0, kShownMax));
  return {"meta",
          fmt::format("the row {} of the store's table meta holds {}, which no version of Aetheris "
                      "writes: stop what uses the store, then restore a backup",
                      key, shown)};
}

bool is_store_id(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace ae::store
