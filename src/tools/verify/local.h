// Verifiers of what this machine can read itself: files, and rows of a SQLite database.
//
// Threads: as Verifier says; they read on the SlowReader's thread.
#pragma once

#include <memory>

#include "tools/verify/verify.h"

namespace ae::tools {

Result<std::unique_ptr<Verifier>> make_file_verifier(const Value& definition, VerifierNeeds needs);
Result<std::unique_ptr<Verifier>> make_sql_verifier(const Value& definition, VerifierNeeds needs);

}  // namespace ae::tools
