-- Token buckets or sliding windows, together with calendar periods. It follows fixed_window.lua and script.lua or
-- sliding_window.lua, each in a block that leaves its functions behind: those of calendar, and those of other.
--
-- decide.lua follows, with the contract: KEYS, ARGV and the reply.

local call, floor, max, min = redis.call, math.floor, math.max, math.min
local size = 5

-- of returns the functions for a bucket or window.
local function of(w) return w.calendar and calendar or other end

local function drainOf(w) return of(w).drainOf(w) end
local function read(w) of(w).read(w) end
local function most(w) return of(w).most(w) end
local function found(w) return of(w).found(w) end
local function take(w, tokens) of(w).take(w, tokens) end
local function loose(w) return of(w).loose(w) end
local function give(w, tokens) of(w).give(w, tokens) end
local function giveMarked(w, tokens, mark) of(w).giveMarked(w, tokens, mark) end
local function block(w, ms) of(w).block(w, ms) end
local function leaves(w, tokens) return of(w).leaves(w, tokens) end
local function mark(w) return of(w).mark(w) end
local function expire(w) of(w).expire(w) end
