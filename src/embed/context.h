// Bodies and functions of the public headers as ours.
//
// Threads: those of the functions.
#pragma once

#include <functional>

#include <aetheris/aetheris.h>
#include "base/error.h"
#include "routines/native/context.h"
#include "routines/native/function.h"

namespace ae::embed {

routines::Function to_internal(aetheris::Function function);
routines::AgentBody to_internal(
    std::function<aetheris::Result<aetheris::Value>(aetheris::Context&, const aetheris::Value&)>
        body);

}  // namespace ae::embed
