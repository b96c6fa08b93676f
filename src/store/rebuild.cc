#include "store/rebuild.h"

namespace ae::store {
namespace {

constexpr std::size_t kShownMax = 80;

}  // namespace

Damage foreign_trigger(const std::string& what, const std::string& table, const std::string& drop) {
  return {"foreign_trigger", "the store holds " + what + " on its table " + table +
                                 ", which Aetheris did not make and which can change what is "
                                 "written: stop what uses the store, then `" +
                                 drop + "` in it"};
}

Damage broken_meta(const std::string& key, const std::string& value) {
  return {"meta", "the row " + key + " of the store's table meta holds " +
                      (value.empty() ? "nothing" : "\"" + value.substr(0, kShownMax) + "\"") +
                      ", which no version of Aetheris writes: stop what uses the store, then "
                      "restore a backup"};
}

bool is_store_id(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace ae::store
