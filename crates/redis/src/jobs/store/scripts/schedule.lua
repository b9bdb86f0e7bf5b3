-- Schedules a batch of jobs of one partition.
-- ARGV, from the third on, for each job: "in", "at" or "every", and its arguments, by the names that
-- `change.rs` has: its id, in how many microseconds or when it is due, the period of one that repeats, and its
-- payload.
-- Returns a digit for each job: 0 where its id is taken, 1 where it was scheduled; for one that repeats also
-- 2 where it is there already as it is asked for, and 3 where its period or its payload was changed.
if is_resent then return last_answer end
if is_late then return refuse() end

local repeats_some = false
for at = 3, #ARGV, 5 do
  repeats_some = repeats_some or ARGV[at] == 'every'
end
-- `payload` is the first that is written.
local wrong = wrong_type({ watching }, {})
  or repeats_some and wrong_type({ claimed, running }, { state, repeats })
if wrong then return wrong end

local first_due = tonumber(call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local earliest = first_due
local scores = {}

local function add(id, due_at)
  scores[#scores + 1] = exact(due_at)
  scores[#scores + 1] = id
  earliest = math.min(earliest, due_at)
end

local function flush()
  if scores[1] then call('ZADD', due, unpack(scores)) end
  scores = {}
end

local function set_grid(id, first, every)
  call('HSET', repeats, id, exact(first) .. ' ' .. exact(every))
end

-- Where a job is that is there already, and when it is due or was.
local function find(id)
  local held_by, attempts, at, max_attempts, failure = read(id)
  local score = call('ZSCORE', due, id)
  if score then return due, held_by, attempts, exact(score), max_attempts, failure end
  for _, set in ipairs({ claimed, running }) do
    if call('ZSCORE', set, id) then return set, held_by, attempts, at, max_attempts, failure end
  end
end

-- Returns the next point of a job's grid: the one for which it waits, or the one after the delivery that runs
-- or was put off.
local function coming_point(from, attempts, at, first, every)
  if from == running then return next_point(first, every, at) end
  local point = last_point(first, every, tonumber(at))
  if not point then return first end
  if attempts == '0' and point == tonumber(at) then return point end
  return point + every
end

-- Schedules a job to repeat whose id is there already.
local function change(id, every, first, body)
  flush()
  local from, held_by, attempts, at, max_attempts, failure = find(id)
  local is_cancelled = from == running and string.sub(held_by, 1, 1) == '!'
  local old_first, old_every = grid_of(call('HGET', repeats, id))
  if not old_every and not is_cancelled then return '0' end
  local has_payload = call('HGET', payload, id) == body
  if old_every == every and has_payload then return '2' end
  call('HSET', payload, id, body)
  if not old_every then
    -- It begins again once the delivery that was cancelled has ended.
    set_grid(id, now + first, every)
    return '1'
  end
  if is_cancelled then
    set_grid(id, old_first, every)
  elseif from then
    set_grid(id, coming_point(from, attempts, at, old_first, old_every), every)
  end
  if from == claimed and not has_payload then
    -- Whoever has claimed it has the old payload.
    to_due(claimed, id, attempts, at, max_attempts, failure)
    earliest = math.min(earliest, tonumber(at))
  end
  return '3'
end

local answers = {}
for at = 3, #ARGV, 5 do
  local kind, id, given, every, body = unpack(ARGV, at, at + 4)
  given, every = tonumber(given), tonumber(every)
  local answer = '1'
  if call('HSETNX', payload, id, body) == 1 then
    local due_at = kind == 'at' and given or now + given
    if kind == 'every' then set_grid(id, due_at, every) end
    add(id, due_at)
  elseif kind == 'every' then
    answer = change(id, every, given, body)
  else
    answer = '0'
  end
  answers[#answers + 1] = answer
end
flush()
local answer = table.concat(answers, ' ')
remember(answer)
-- Workers look again when there is another first one.
if earliest < first_due then hint() end
return answer
